"""Initial weights on real ranks: every layout holds slices of the same full tensors, none holds another's.

Local shards are put together by `local_region`, which is itself held against a tensor of known content that torch
distributed; nothing of DTensor's own gathering is trusted.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from tests.distributed.ranks import run_ranks
from titan.config.layout import Batch, Degrees
from titan.config.schema import ActivationCheckpoint, Compile, Parallelism, Training
from titan.models import registry
from titan.parallelisms import mesh as meshes
from titan.parallelisms import parallelize
from titan.parallelisms.initialize import local_region

MESHES = [(1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 4, 1), (2, 2, 1), (1, 1, 4), (1, 2, 2), (2, 1, 2)]
"""(dp_replicate, fsdp, tp)"""


class Shapes(nn.Module):
    """Sizes that divide by nothing: 251 rows, and fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(251, 8)
        self.column, self.short, self.single = nn.Linear(8, 10), nn.Linear(8, 3), nn.Linear(8, 1)
        self.row, self.short_row = nn.Linear(8, 6), nn.Linear(4, 2, bias=False)
        self.norm, self.short_norm = nn.LayerNorm(6), nn.LayerNorm(3)


PLAN = {
    "embedding": RowwiseParallel,
    "column": ColwiseParallel,
    "short": ColwiseParallel,
    "single": ColwiseParallel,
    "row": RowwiseParallel,
    "short_row": RowwiseParallel,
    "norm": SequenceParallel,
    "short_norm": SequenceParallel,
}


def numbered(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.arange(float(p.numel())).view(p.shape) for name, p in module.named_parameters()}


def regions_are_right(replicate: int, fsdp: int, tp: int) -> int:
    mesh = init_device_mesh("cpu", (replicate, fsdp, tp), mesh_dim_names=("dp_replicate", "fsdp", "tp"))
    module = Shapes()
    known = numbered(module)
    module.load_state_dict(known)
    if tp > 1:
        parallelize_module(module, mesh["tp"], {name: style() for name, style in PLAN.items()})
    fully_shard(module, mesh=mesh["dp_replicate", "fsdp"])
    held = 0
    for name, parameter in module.named_parameters():
        local, region = parameter.to_local(), local_region(parameter)
        assert torch.equal(local, known[name][region]), (name, region, local)
        held += local.numel()
    return held


@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_a_region_is_what_torch_put_on_the_rank(sizes):
    replicate, fsdp, tp = sizes
    total = sum(parameter.numel() for parameter in Shapes().parameters())
    held = run_ranks(regions_are_right, replicate * fsdp * tp, *sizes)
    if tp == 1:
        assert sum(held) == replicate * total  # nothing missing, nothing twice
    assert max(held) < total or fsdp * tp == 1


LAYOUTS: dict[str, tuple[Degrees, dict]] = {
    "fsdp 2": (Degrees(dp_shard=2), {}),
    "replicate 2": (Degrees(dp_replicate=2), {}),
    "tp 2": (Degrees(tp=2), {}),
    "cp 2": (Degrees(cp=2), {}),
    "pp 2": (Degrees(pp=2), {"pipeline_parallel_schedule": "1F1B"}),
    "pp 2 interleaved": (Degrees(pp=2), {"pipeline_parallel_schedule": "Interleaved1F1B"}),
    "pp 2 V": (Degrees(pp=2), {"pipeline_parallel_schedule": "ZBVZeroBubble"}),
    "fsdp 4": (Degrees(dp_shard=4), {}),
    "hsdp": (Degrees(dp_replicate=2, dp_shard=2), {}),
    "tp 4, more than KV heads": (Degrees(tp=4), {}),
    "fsdp 2 x tp 2": (Degrees(dp_shard=2, tp=2), {}),
    "pp 2 x tp 2": (Degrees(pp=2, tp=2), {"pipeline_parallel_schedule": "1F1B"}),
    "pp 2 x fsdp 2": (Degrees(pp=2, dp_shard=2), {"pipeline_parallel_schedule": "1F1B"}),
}

Shard = tuple[str, bool, tuple[slice, ...], torch.Tensor]


def build(degrees: Degrees, options: dict, tied: bool, seed: int) -> list[Shard]:
    """This rank's shards: (FQN, counted, region, values)."""
    spec = registry.get("llama3")
    args = spec.args(dim=64, n_layers=4, n_heads=4, n_kv_heads=2, hidden_dim=96, vocab_size=251, tie_embeddings=tied)
    assembly = parallelize.build(
        spec,
        args,
        batch=Batch(global_rows=8, rows=8 // degrees.batch, accumulation=1, microbatch_size=1),
        training=Training(seq_len=32, mixed_precision_param="float32"),
        parallelism=Parallelism(**options),
        activation_checkpoint=ActivationCheckpoint(mode="none"),
        compile=Compile(),
        mesh=meshes.build(degrees, "cpu") if degrees.world_size > 1 else None,
        device=torch.device("cpu"),
        seed=seed,
        log=lambda line: None,
    )
    found = []
    for named in assembly.parameters:
        parameter = named.parameter.detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        found.append((named.fqn, named.counted, local_region(parameter), local.clone()))
    return found


def whole(tied: bool) -> dict[str, torch.Tensor]:
    return {fqn: values for fqn, _counted, _region, values in build(Degrees(), {}, tied, seed=3)}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_starts_from_the_same_bits(layout, tied):
    degrees, options = LAYOUTS[layout]
    expected = whole(tied)
    covered = {fqn: torch.zeros(values.shape, dtype=torch.bool) for fqn, values in expected.items()}
    for shards in run_ranks(build, degrees.world_size, degrees, options, tied, 3):
        for fqn, _counted, region, values in shards:
            assert torch.equal(values, expected[fqn][region]), fqn
            covered[fqn][region] = True
    assert all(mask.all() for mask in covered.values()), [fqn for fqn, mask in covered.items() if not mask.all()]


def test_no_two_blocks_of_a_weight_and_no_two_weights_are_alike():
    drawn = {fqn: values for fqn, values in whole(tied=False).items() if "norm" not in fqn}
    blocks = [(fqn, block) for fqn, values in drawn.items() for block in values.flatten().chunk(4)]
    for (name, one), (other_name, other) in itertools.combinations(blocks, 2):
        size = min(one.numel(), other.numel())
        alike = torch.corrcoef(torch.stack([one[:size], other[:size]]))[0, 1].abs().item()
        assert alike < 6 / size**0.5, (name, other_name, alike)


def test_spread_follows_the_models_rules():
    drawn = whole(tied=False)
    cut = 0.98658  # what the cut at three standard deviations leaves
    assert drawn["layers.2.attention.wq.weight"].std().item() == pytest.approx(0.02 * cut, rel=0.04)
    assert drawn["layers.2.attention.wo.weight"].std().item() == pytest.approx(0.02 * cut / 8**0.5, rel=0.04)
    assert drawn["layers.2.feed_forward.w2.weight"].std().item() == pytest.approx(0.02 * cut / 8**0.5, rel=0.04)
    assert all(values.abs().max() <= 0.06 + 1e-9 for fqn, values in drawn.items() if "norm" not in fqn)
    assert all(values.eq(1).all() for fqn, values in drawn.items() if "norm" in fqn)
