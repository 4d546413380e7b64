"""Activations of a microbatch, by running the real modules on fake tensors: nothing here knows what a block saves.

A short model (both ends, two blocks of each kind) is cut, sharded over the fake tp x cp slice of the world,
checkpointed as the run will be, and taken through a forward and a backward by `LiveBytes`. Its segments (an end or a
block, forward or backward) are the pieces that `memory` and `communication` put together for any depth, schedule and
number of microbatches. Blocks are of one kind where their parameters have equal shapes and checkpointing treats them
alike.

Every piece is seen twice: with no gradients yet, and with gradients to add to. Under a schedule that splits the
backward the two halves are run by torch's own functions. A compiled model saves less, by what its compiler decides:
the figures of eager execution are an upper bound then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight  # what stages call
from torch.distributed.tensor import DTensor

from titan.config.layout import Degrees
from titan.models import registry
from titan.parallelisms.activation_checkpoint import apply_activation_checkpoint
from titan.parallelisms.context import apply_context_parallel
from titan.parallelisms.loss import TokenLoss
from titan.parallelisms.parameters import canonical_fqn
from titan.parallelisms.precision import WorkingCopies
from titan.parallelisms.shards import local_tensor
from titan.plan.activations_live import LiveBytes, Segment
from titan.plan.activations_norm import use_fused_norms
from titan.plan.activations_setting import Setting
from titan.plan.parameters import cut_model, fake_world

GRADIENTS = "unsharded gradients"
UPSTREAM = "gradients of activations"


@dataclass(frozen=True)
class Trace:
    """Segments by name: `forward <piece>`, `backward <piece>` (with no gradients yet), `backward+ <piece>` (with
    gradients to add to), `reduce <piece>` (what tensor parallelism does before a reduction), and for a split backward
    `input <piece>` and `weight+`; pieces are `first`, `last`, `loss` and the kinds of blocks.

    Attributes:
        hidden: bytes of what a block returns.
        logits: bytes of the logits of this rank.
        kinds: of the traced blocks, to share out what is measured over all of them.
    """

    segments: dict[str, Segment]
    hidden: int
    logits: int
    kinds: tuple[str, ...]


@lru_cache(maxsize=256)
def trace(setting: Setting, *, split: bool = False) -> Trace:
    """Runs the short model of a setting. With `split`, the first end is left out and the backward is run in halves."""
    with fake_world(Degrees(tp=setting.tp, cp=setting.cp)) as mesh:
        names: dict[str, str] = {}
        if mesh is not None:
            names = {mesh.tp.get_group().group_name: "tp"}
            if mesh.cp is not None:
                names[mesh.cp.get_group().group_name] = "cp"
        return _Run(setting, mesh, LiveBytes(names), split).trace()


class _Run:
    """One tracing: the short model with its hooks."""

    def __init__(self, setting: Setting, mesh: Any, live: LiveBytes, split: bool) -> None:
        self.setting, self.mesh, self.live, self.split = setting, mesh, live, split
        self.spec = registry.get(setting.model)
        self.layers = self._layers()
        self.backward = "backward"
        self.hidden = self.logits = 0
        self._before = "first"  # the piece that the forward is in

    def _layers(self) -> list[int]:
        """Two of each kind, so that the second one stands between blocks."""
        chosen: dict[str, list[int]] = {}
        for layer in range(self.spec.n_layers(self.setting.args)):
            numbers = chosen.setdefault(self.setting.kind(layer), [])
            if len(numbers) < 2:
                numbers.append(layer)
        return sorted(layer for numbers in chosen.values() for layer in numbers)

    def trace(self) -> Trace:
        setting, live = self.setting, self.live
        part = self._part()
        with FakeTensorMode(allow_non_fake_inputs=True):
            part.to_empty(device="cpu")
            copies = self._copies(part)
            loss = self._loss()
            self._hook(part, copies)
            labels = torch.zeros(setting.rows, setting.seq_len // setting.cp, dtype=torch.int64)
            positions = torch.arange(setting.seq_len // setting.cp)
            if setting.tp > 1:  # DTensor tries each operator once on tensors of global shape: not what a step holds
                self._steps(part, loss, labels, positions)
                part.zero_grad()
            with live:
                self._steps(part, loss, labels, positions)
        return Trace(live.segments, self.hidden, self.logits, tuple(map(setting.kind, self.layers)))

    def _steps(self, part: nn.Module, *arguments: Any) -> None:
        self.live.segments.clear()
        step = self._split_step if self.split else self._step
        for self.backward in ("backward", "backward+"):
            step(part, *arguments)
        self._reduce(part)
        self.live.open("end")

    # -- the model ----------------------------------------------------------------------------------------------------

    def _part(self) -> nn.Module:
        setting = self.setting
        part = cut_model(self.spec, setting.args, self.layers, self.mesh, loss_parallel=setting.loss_parallel)
        if self.split:
            for name in self.spec.stages.first:
                setattr(part, name, None)
        if self.mesh is not None and self.mesh.cp is not None:
            group = self.mesh.cp.get_group()
            apply_context_parallel(part, group=group, method=setting.method, load_balancer=setting.balancer)
        blocks = part.get_submodule(self.spec.stages.blocks)
        assert isinstance(blocks, nn.ModuleDict)
        apply_activation_checkpoint(
            blocks,
            mode=setting.mode,  # type: ignore[arg-type]
            selective_option=setting.option,
            preserve_rng_state=False,  # there is no random state of fake tensors
            determinism_check="none",
        )
        if setting.fused_norms:
            use_fused_norms(part)
        dtype = setting.master_dtype if setting.single else setting.param_dtype
        return part.to(getattr(torch, dtype))

    def _copies(self, part: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
        """Working copy to master, where one process has them."""
        setting = self.setting
        if not setting.single or setting.param_dtype == setting.master_dtype:
            return {}
        return WorkingCopies([part], getattr(torch, setting.param_dtype)).masters

    def _loss(self) -> TokenLoss:
        sharded = self.mesh is not None and self.setting.tp > 1 and self.setting.loss_parallel
        loss = TokenLoss((self.mesh.tp.get_group(), 0) if sharded else None)
        loss.valid_tokens = torch.ones((), dtype=torch.int64)
        return loss

    # -- where each byte belongs --------------------------------------------------------------------------------------

    def _hook(self, part: nn.Module, copies: dict[nn.Parameter, nn.Parameter]) -> None:
        blocks = self.spec.stages.blocks
        for name, module in part.named_modules():
            fqn = canonical_fqn(f"{name}.").rstrip(".")
            if fqn in ("", blocks):
                continue
            inner = fqn.removeprefix(f"{blocks}.").partition(".")[2] if fqn.startswith(f"{blocks}.") else fqn
            self._enter_and_leave(module, inner or "residual")
        for layer in self.layers:
            self._cut_before(part.get_submodule(blocks).get_submodule(str(layer)), self.setting.kind(layer))
        for parameter in part.parameters():
            self._own_gradient(parameter, copies.get(parameter, parameter))

    def _enter_and_leave(self, module: nn.Module, category: str) -> None:
        outer: list[str] = []

        def enter(_module: nn.Module, _inputs: Any) -> None:
            outer.append(self.live.category)
            self.live.category = category

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            self.live.category = outer.pop()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def _cut_before(self, block: nn.Module, kind: str) -> None:
        """Opens a segment where the block begins, and in the backward where the gradient of its output is there."""

        def begin(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.live.open(f"forward {kind}")
            if inputs[0].requires_grad and inputs[0].grad_fn is not None:
                inputs[0].register_hook(self._opener(self._before))  # type: ignore[no-untyped-call]
            self._before = kind

        def end(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            self.hidden = _bytes(output)

        block.register_forward_pre_hook(begin, prepend=True)
        block.register_forward_hook(end)

    def _opener(self, piece: str) -> Callable[[Tensor], None]:
        half = self.backward

        def begin(_gradient: Tensor) -> None:
            self.live.open(f"{half if not self.split else half.replace('backward', 'input')} {piece}")

        return begin

    def _own_gradient(self, parameter: nn.Parameter, holder: nn.Parameter) -> None:
        def claim(_parameter: Tensor) -> None:
            if holder.grad is not None:
                self.live.reassign(local_tensor(holder.grad), GRADIENTS)

        parameter.register_post_accumulate_grad_hook(claim)  # type: ignore[no-untyped-call]

    # -- a step -------------------------------------------------------------------------------------------------------

    def _forward(self, part: nn.Module, inputs: Tensor, positions: Tensor, loss: TokenLoss, labels: Tensor) -> Any:
        """(loss, what the caller keeps). The last block's segment ends where the modules behind it begin."""
        live, self._before = self.live, "first"
        live.category = "other"
        live.open("forward first")
        last = [module for name in self.spec.stages.last if (module := getattr(part, name)) is not None]

        def begin(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            live.open("forward last")
            inputs[0].register_hook(self._opener(self._before))  # type: ignore[no-untyped-call]
            self._before = "last"

        handle = last[0].register_forward_pre_hook(begin, prepend=True)
        logits = part(inputs, positions)
        handle.remove()
        logits.register_hook(self._opener("last"))
        self.logits = _bytes(logits)
        live.category = "loss"
        value = loss(logits, labels)
        live.category = UPSTREAM
        return value, logits if self.setting.piped else None

    def _step(self, part: nn.Module, loss: TokenLoss, labels: Tensor, positions: Tensor) -> None:
        value, kept = self._forward(part, labels, positions, loss, labels)
        self.live.open(f"{self.backward} loss")
        value.backward()
        del value, kept
        self.live.open("between")

    def _split_step(self, part: nn.Module, loss: TokenLoss, labels: Tensor, positions: Tensor) -> None:
        local = labels.shape[1] // self.setting.tp
        dtype = getattr(torch, self.setting.param_dtype)
        hidden = torch.empty(labels.shape[0], local, self._width(part), dtype=dtype, requires_grad=True)
        value, kept = self._forward(part, hidden, positions, loss, labels)
        half = self.backward.replace("backward", "input")
        self.live.open(f"{half} loss")
        _grads, groups = stage_backward_input([value], None, [hidden], part.parameters())
        del value, kept
        self.live.open(self.backward.replace("backward", "weight"))
        stage_backward_weight(part.parameters(), groups)
        self.live.open("between")

    def _width(self, part: nn.Module) -> int:
        """The hidden size, as the modules behind the blocks say it."""
        last = getattr(part, self.spec.stages.last[-1])
        return int(next(iter(last.parameters())).shape[-1])

    def _reduce(self, part: nn.Module) -> None:
        """Pending sums of gradients over tp, which FSDP resolves before it reduces."""
        blocks = f"{self.spec.stages.blocks}."
        for name, parameter in part.named_parameters():
            if not isinstance(parameter, DTensor) or not isinstance(parameter.grad, DTensor):
                continue
            if parameter.grad.placements == parameter.placements:
                continue
            fqn = canonical_fqn(name)
            layer = fqn.removeprefix(blocks).partition(".")[0]
            end = "first" if fqn.partition(".")[0] in self.spec.stages.first else "last"
            piece = self.setting.kind(int(layer)) if fqn.startswith(blocks) else end
            if fqn.startswith(blocks) and int(layer) != self._representative(piece):
                continue
            before = self.live.segments.get(f"reduce {piece}")
            self.live.open(f"reduce {piece}")
            parameter.grad.redistribute(placements=parameter.placements)
            if before is not None:
                self.live.segments[f"reduce {piece}"].calls[:0] = before.calls

    def _representative(self, kind: str) -> int:
        return next(layer for layer in self.layers if self.setting.kind(layer) == kind)


def _bytes(tensor: Tensor) -> int:
    local = local_tensor(tensor)
    return local.numel() * local.element_size()
