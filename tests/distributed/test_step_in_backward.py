"""`optimizer.early_step_in_backward`: the run is the same to the bit, and gradients are never there together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed import tiny
from tests.distributed.ranks import run_ranks
from tests.distributed.test_parity import layout
from tests.faults import spoilt
from tests.plan import runs
from titan.config import ConfigError, resolve
from titan.parallelisms.shards import local_tensor
from titan.plan.measure import measure

EARLY = {"early_step_in_backward": True}
LAYOUTS = (
    "",
    "training.mixed_precision_param=bfloat16,args.tie_embeddings=true,activation_checkpoint.mode=full",
    "compile=aot_eager",
    "dp_shard=2,training.mixed_precision_param=bfloat16,args.tie_embeddings=true",
    "dp_replicate=2",
    "tp=2,dp_shard=2",
    "cp=2,reshard=never",
)


def run(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Losses, norms, last weights and moments of three steps, and how many gradients there were at most."""
    trainer = tiny.make_trainer(tiny.config(sections))
    parameters = [named.parameter for named in trainer.model.parameters]
    most = 0

    def count(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal most
        most = max(most, sum(parameter.grad is not None for parameter in parameters))

    trainer.optimizer.register_step_pre_hook(count)
    records = tiny.train_steps(trainer, tiny.STEPS)
    moments = [local_tensor(trainer.optimizer.state[one]["exp_avg"]).numpy().copy() for one in parameters]
    runs.close(trainer)
    return {
        "scalars": [(record["loss"], record["grad_norm"], record["lr"]) for record in records],
        "left": sum(len(record["grads"]) for record in records),
        "last": [values for _fqn, _shape, _box, values in tiny.local_pieces(trainer, grads=False)],
        "moments": moments,
        "most": most,
        "parameters": len(parameters),
    }


@pytest.mark.parametrize("text", LAYOUTS, ids=lambda text: text or "one process")
def test_the_run_has_the_same_bits_and_one_gradient_at_a_time(text: str) -> None:
    size, sections = layout(text)
    sections["training"] = {**sections.get("training", {}), "max_norm": float("inf")}
    usual = run_ranks(run, size, sections)
    early = run_ranks(run, size, {**sections, "optimizer": EARLY})
    for want, found in zip(usual, early, strict=True):
        (losses, norms, rates), wanted = zip(*found["scalars"], strict=True), list(zip(*want["scalars"], strict=True))
        assert (losses, rates) == (wanted[0], wanted[2])
        assert norms == pytest.approx(wanted[1], rel=1e-6)
        assert all(map(np.array_equal, found["last"], want["last"]))
        assert all(map(np.array_equal, found["moments"], want["moments"]))
        assert (want["most"], found["most"], found["left"]) == (want["parameters"], 1, 0)


@pytest.mark.parametrize(("policy", "steps"), [("fail", None), ("rewind", 4)])
def test_a_step_that_is_not_finite_was_taken_and_is_never_saved(policy: str, steps: int | None, tmp_path: Path) -> None:
    size, sections = layout("dp_shard=2")
    sections["training"] = {"max_norm": float("inf"), "non_finite": policy}
    results = run_ranks(spoilt.run, size, {**sections, "optimizer": EARLY}, str(tmp_path), steps=4)
    for result in results:
        if steps is None:
            name, message = result["error"]
            assert name == "NonFinite"
            assert "rows 24 to 31; the optimizer has taken this step." in message
        else:
            assert (result["error"], result["skipped"], result["progress"]["step"]) == (None, 1, steps)
            assert spoilt.finite(result["last"])
    saved = sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*"))
    assert saved == (["step-2"] if steps is None else ["step-2", "step-4"])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("size", "sections", "said"),
    [
        (1, {}, "clipping by training.max_norm = 1.0 comes too late: set it to inf"),
        (2, {"parallelism": {"pipeline_parallel_degree": 2}}, "set pipeline_parallel_degree = 1"),
        (
            1,
            {"training": {"local_batch_size": 2}},
            "4 accumulation steps add up to a gradient: set training.local_",
        ),
        (1, {"training": {"non_finite": "skip"}}, 'set training.non_finite to "fail" or "rewind"'),
    ],
)
def test_what_one_backward_cannot_decide_is_refused(size: int, sections: dict[str, Any], said: str) -> None:
    training = {"max_norm": float("inf"), **sections.get("training", {})} if sections else {}
    settings = tiny.config({**sections, "training": training, "optimizer": EARLY})
    with pytest.raises(ConfigError) as caught:
        resolve(settings, size, "cpu")
    (problem,) = caught.value.problems
    assert problem.key == "optimizer.early_step_in_backward"
    assert said in str(problem)


def test_the_gradients_of_a_large_model_are_never_counted_in_its_peak() -> None:
    usual, early = (run_ranks(peak, 1, early, fresh=True)[0] for early in (False, True))
    assert early < 0.85 * usual, (early, usual)


def peak(early: bool) -> int:
    """Live bytes at the peak of a second step, whose weights, gradients and moments are most of it."""
    shape = {"dim": 512, "n_layers": 4, "n_heads": 8, "n_kv_heads": 4, "hidden_dim": 1024, "vocab_size": 503}
    training = {"seq_len": 32, "global_batch_size": 1, "max_norm": float("inf")}
    settings = runs.config({"training": training, "optimizer": {"early_step_in_backward": early}}, shape)
    return measure(lambda: runs.make_trainer(settings), runs.take_step, 2).steps[-1]
