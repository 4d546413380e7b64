"""The predicted time: its work against closed forms, its constants and its errors against published figures."""

from __future__ import annotations

import dataclasses
from math import log
from typing import Any

import pytest

from scripts import fit_plan
from tests.plan.tiny_plan import resolved
from titan.plan.activations import trace
from titan.plan.activations_setting import setting_of
from titan.plan.cost import predict
from titan.plan.cost_terms import FITTED, Extras
from titan.plan.devices import DEVICES
from titan.plan.work import Work

H100 = DEVICES["h100"]
ROWS = fit_plan.rows()
# Outside the fit every row is within 20 % but this one: docs/plan.md says why.
MISSES = {"70B, 256 GPUs, FSDP 32 x TP 8, compile, float8": 0.22}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_published_tokens_per_second(row: dict[str, Any]) -> None:
    assert abs(fit_plan.error(row)) < (0.05 if row.get("fit") else MISSES.get(row["name"], 0.2))


def test_the_constants_are_where_the_rows_of_the_8b_model_put_them() -> None:
    """No constant can be moved by a tenth to fit those rows better; none of the other rows is asked."""
    chosen = [row for row in ROWS if row.get("fit")]
    assert {row["flavor"] for row in chosen} == {"8B"}

    def loss(constants: Any) -> float:
        return sum(log(1.0 + fit_plan.error(row, constants)) ** 2 for row in chosen)

    least = loss(FITTED)
    for name in fit_plan.BOUNDS:
        for times in (0.9, 1.1):
            assert loss(dataclasses.replace(FITTED, **{name: getattr(FITTED, name) * times})) > least


def test_counted_work_is_that_of_the_formula() -> None:
    """Products are 6 FLOPs a matrix parameter and token; attention is half of the formula's, its backward 5/4."""
    run = resolved({"activation_checkpoint": {"mode": "none"}})
    setting, segments = setting_of(run), trace(setting_of(run)).segments
    layers = run.spec.n_layers(run.model_args)
    total = Work()
    for name, segment in segments.items():
        if name.endswith("again") or not name.startswith(("forward ", "backward ")):
            continue
        for _ in range(layers if "block" in name else 1):
            total += segment.work
    tokens = setting.rows * setting.seq_len
    args: Any = run.model_args
    attention = 12.0 * layers * args.n_heads * args.head_size * setting.seq_len * tokens
    products = run.spec.flops_per_token(args, setting.seq_len) * tokens - attention
    # The formula takes the norms' weights for matrices too.
    assert sum(each.flops for each in total.products) == pytest.approx(products, rel=1e-3)
    assert sum(each.flops for each in total.products if each.of_weight) == pytest.approx(products / 3, rel=1e-3)
    assert total.attention == pytest.approx(attention / 2 * (2 + 5) / 6)
    assert 0 < total.fused < total.eager


def test_recomputation_adds_a_forward_and_tensor_parallelism_divides_products() -> None:
    def products(run: Any) -> float:
        found = trace(setting_of(run)).segments
        kind = setting_of(run).kind(0)
        return sum(each.flops for half in ("forward", "backward") for each in found[f"{half} {kind}"].work.products)

    plain = products(resolved({"activation_checkpoint": {"mode": "none"}}))
    assert products(resolved({"activation_checkpoint": {"mode": "full"}})) == pytest.approx(plain * 4 / 3)
    halves = resolved({"activation_checkpoint": {"mode": "none"}, "parallelism": {"tensor_parallel_degree": 2}}, 2)
    assert products(halves) == pytest.approx(plain / 2)


def test_terms_are_the_step_and_each_dimension_has_its_own() -> None:
    degrees = {"tensor_parallel_degree": 2, "context_parallel_degree": 2, "pipeline_parallel_degree": 2}
    run = resolved({"parallelism": {**degrees, "data_parallel_shard_degree": 2}}, 16)
    found = predict(run, H100, 8)
    assert sum(found.terms.values()) == found.seconds > 0
    communication = {"tensor parallel", "context parallel", "FSDP: gather parameters", "FSDP: reduce gradients"}
    assert communication | {"pipeline bubble", "optimizer", "waiting across nodes"} <= set(found.terms)
    assert found.tokens_per_second_per_device * 16 == pytest.approx(found.tokens_per_second)
    assert "waiting across nodes" not in predict(run, H100, 16).terms


def test_what_train_does_not_run_is_faster() -> None:
    run = resolved({"model": {"flavor": "8B"}, "parallelism": {"tensor_parallel_degree": 8}}, 8)
    plain = predict(run, H100, 8)
    assert predict(run, H100, 8, extras=Extras(float8=True)).seconds < plain.seconds
    hidden = predict(run, H100, 8, extras=Extras(async_tp=True))
    assert hidden.terms["tensor parallel"] < plain.terms["tensor parallel"] / 2


def test_a_quick_prediction_is_within_five_percent() -> None:
    run = resolved({"model": {"flavor": "8B"}, "training": {"seq_len": 4096, "global_batch_size": 32}}, 8)
    assert predict(run, H100, 8, quick=True).seconds == pytest.approx(predict(run, H100, 8).seconds, rel=0.05)
