"""The norm of the whole model on real ranks: each parameter once in every layout, the same bits on every rank.

A toy of uneven sizes goes through the same `parallelize_module` and `fully_shard` as a model does; its gradients come
from a backward of the same rows on every layout. The reference is `clip_grad_norm_` on one process.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.distributed.ranks import RankError, run_ranks
from titan.config.schema import Optimizer
from titan.optim import build_optimizer, clip_, global_norm
from titan.parallelisms.parameters import NamedParameter, named_parameters

CPU = torch.device("cpu")
LAYOUTS = {
    "fsdp2": (1, 2, 1),
    "replicate2": (2, 1, 1),
    "tp2": (1, 1, 2),
    "fsdp4": (1, 4, 1),
    "hsdp": (2, 2, 1),
    "fsdp2 x tp2": (1, 2, 2),
    "replicate2 x tp2": (2, 1, 2),
}


class Toy(nn.Module):
    """Sizes that 2 and 4 ranks cut unevenly, and a norm of 3 rows, of which one of 4 ranks holds none."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10, bias=False), nn.Linear(10, 3, bias=False)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(self.up(x).relu()))


def toy() -> Toy:
    torch.manual_seed(1)
    return Toy()


def rows() -> torch.Tensor:
    return torch.sin(torch.arange(8 * 6.0)).view(8, 6)


def sharded(layout: str) -> Toy:
    replicate, fsdp, tp = LAYOUTS[layout]
    mesh = init_device_mesh("cpu", (replicate, fsdp, tp), mesh_dim_names=("dp_replicate", "fsdp", "tp"))
    module = toy()
    if tp > 1:
        styles = {"up": ColwiseParallel(), "down": RowwiseParallel(), "norm": _Whole()}
        parallelize_module(module, mesh["tp"], styles)
    fully_shard(module, mesh=mesh["dp_replicate", "fsdp"])
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
    place = mesh.get_coordinate()
    shares = replicate * fsdp
    mine = rows().chunk(shares)[place[0] * fsdp + place[1]]
    module(mine).square().sum().backward()
    return module


class _Whole(ColwiseParallel):
    """Weights replicated over tp, as norms are: gradients of the same rows are the same on each of its ranks."""

    def _apply(self, module: nn.Module, device_mesh: torch.distributed.device_mesh.DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            whole = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()])
            module.register_parameter(name, nn.Parameter(whole))
        module.register_forward_pre_hook(
            lambda _module, inputs: tuple(DTensor.from_local(x, device_mesh, [Replicate()]) for x in inputs)
        )
        module.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return module


def measure(layout: str, max_norm: float) -> tuple[float, float, dict[str, torch.Tensor]]:
    module = sharded(layout)
    parameters = named_parameters([module], {})
    optimizer = build_optimizer(Optimizer(lr=1e-2, weight_decay=0.1), parameters)
    norm = global_norm(parameters, CPU)
    clip_(parameters, norm, max_norm)
    after = global_norm(parameters, CPU)
    optimizer.step()  # fused, also with empty shards
    weights = {named.fqn: named.parameter.full_tensor().detach() for named in parameters}
    return norm.item(), after.item(), weights


def one_process(max_norm: float) -> tuple[float, dict[str, torch.Tensor]]:
    module = toy()
    module(rows()).square().sum().backward()
    optimizer = build_optimizer(Optimizer(lr=1e-2, weight_decay=0.1), named_parameters([module], {}))
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()
    return norm.item(), {name: parameter.detach() for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norm_and_clipped_step_are_those_of_one_process(layout):
    replicate, fsdp, tp = LAYOUTS[layout]
    norm, weights = one_process(0.5)
    ranks = run_ranks(measure, replicate * fsdp * tp, layout, 0.5)
    assert len({found for found, _after, _weights in ranks}) == 1, "the ranks disagree"
    for found, after, updated in ranks:
        assert found == pytest.approx(norm, rel=1e-6)
        assert after == pytest.approx(0.5, rel=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(updated[name], weight, rtol=1e-5, atol=1e-6)


def two_stages() -> float:
    """Two pipeline ranks with parameters of their own and a tied one on both; the second rank's copy is uncounted."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "fsdp"))
    local = [torch.full((3,), 1.0 + rank), torch.full((5,), 7.0)]
    named = []
    for fqn, value in zip((f"own.{rank}", "tied"), local, strict=True):
        parameter = nn.Parameter(DTensor.from_local(torch.zeros_like(value), mesh["fsdp"], [Shard(0)]))
        parameter.grad = DTensor.from_local(value, mesh["fsdp"], [Shard(0)])
        named.append(NamedParameter(fqn, parameter, counted=fqn != "tied" or rank == 0))
    return global_norm(named, CPU).item()


def test_stages_add_up_and_a_tied_copy_counts_once():
    expected = (3 * 1.0**2 + 3 * 2.0**2 + 5 * 7.0**2) ** 0.5
    assert run_ranks(two_stages, 2) == pytest.approx([expected] * 2, rel=1e-6)


def one_rank_has_nothing() -> float:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "fsdp"))
    if dist.get_rank() == 0:
        return global_norm([], CPU).item()
    parameter = nn.Parameter(DTensor.from_local(torch.zeros(4), mesh["fsdp"], [Shard(0)]))
    parameter.grad = DTensor.from_local(torch.full((4,), 2.0), mesh["fsdp"], [Shard(0)])
    return global_norm([NamedParameter("p", parameter)], CPU).item()


def test_a_stage_without_gradients_takes_part():
    assert run_ranks(one_rank_has_nothing, 2) == [4.0, 4.0]


def refuse(kind: str) -> None:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    if kind == "partial":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parameter = nn.Parameter(DTensor.from_local(torch.zeros(4), mesh, [Replicate()]))
        parameter.grad = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    global_norm([NamedParameter("layers.0.w", parameter)], CPU)


@pytest.mark.parametrize(("kind", "words"), [("partial", "partial sum over ranks"), ("plain", "plain tensor")])
def test_gradients_that_would_count_wrongly_are_refused(kind, words):
    with pytest.raises(RankError, match=rf"layers\.0\.w is a {words}"):
        run_ranks(refuse, 2, kind)


def mix() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    sharded = nn.Parameter(DTensor.from_local(torch.zeros(2), mesh, [Shard(0)]))
    plain = nn.Parameter(torch.zeros(4))
    build_optimizer(Optimizer(), [NamedParameter("sharded", sharded), NamedParameter("layers.0.plain", plain)])


def test_plain_parameters_among_sharded_ones_are_refused_by_name():
    with pytest.raises(RankError, match=r"layers\.0\.plain: plain among DTensors"):
        run_ranks(mix, 2)
