"""Pipeline stages cut from a trace of the whole model, by torch's `pipeline()` (torch.distributed.pipelining).

For models given as one module whose forward cannot pass over missing children: the trace, not the forward, is cut.
What comes back are stages like those of `keep_modules`: `forward(x, positions)`, parameters under the names of the
whole model, a ModuleDict of blocks under their global numbers, and None for an end that another stage holds; so
nothing after the cut knows of it. Three properties of a trace decide the rest:
  - it holds shapes, devices and dtypes as constants, so it is taken at the shape of a microbatch, on this device, in
    the dtype of compute, with fake tensors: no memory and no arithmetic;
  - what follows from `positions` alone (rotations) would be sent along from the first stage, and torch 2.13 sends
    past a stage without tags, which mixes microbatches up: each stage computes it anew;
  - one tensor, the hidden state, may pass from a stage to the next. A model that needs more is refused.
The trace goes through an autograd.Function: the gradient is that of the operators in its forward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import pipeline

from titan.models.registry import Stages

_POSITIONS = "positions"


class CannotTrace(RuntimeError):
    """A model whose trace cannot be cut into stages."""

    exit_code = 2  # refused: the same start would fail again

    def __init__(self, reason: str) -> None:
        super().__init__(f'parallelism.pipeline_parallel_split = "traced": {reason}; use "layers"')


def trace_stages(
    build: Callable[[], nn.Module],
    order: Stages,
    modules: Sequence[Sequence[str]],
    wanted: Sequence[int],
    *,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> list[nn.Module]:
    """Traces the whole model and returns the stages number `wanted`, with parameters on the meta device.

    Args:
        build: makes the whole model, `forward(x, positions)`, on torch's current device.
        order: which of its modules come first, repeat, come last.
        modules: FQNs of every stage, in order.
        shape: (rows, seq) of one microbatch.
        device: where the stages will compute.
        dtype: of compute.

    Raises CannotTrace where torch.export fails, or more than one tensor passes between two stages, or the model holds
    tensors that are no parameters.
    """
    with FakeTensorMode(), torch.device(device):
        model = build()
        masters = {name: parameter.dtype for name, parameter in model.named_parameters(remove_duplicate=False)}
        _replace_parameters(model, lambda fqn, parameter: torch.empty_like(parameter, dtype=dtype))
        ids, positions = torch.zeros(shape, dtype=torch.int64), torch.arange(shape[1])
        with warnings.catch_warnings():
            # torch's own use of its LeafSpec, in the copy of a signature.
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            try:
                pipe = pipeline(
                    model,
                    (ids,),
                    {_POSITIONS: positions},
                    split_policy=partial(_split, firsts=[part[0] for part in modules[1:]]),
                )
            except CannotTrace:
                raise
            except RuntimeError as error:
                raise CannotTrace(f"torch.export cannot trace this model ({error.__cause__ or error})") from error
    return [_as_cut(pipe.get_stage_module(stage), order, masters) for stage in wanted]


def _split(traced: fx.GraphModule, firsts: Sequence[str]) -> fx.GraphModule:
    """Marks a cut before the first operation of each of the modules `firsts`, and makes the cuts clean."""
    graph = traced.graph
    graph.eliminate_dead_code()  # such as torch.promote_types, which the compiler would refuse
    first_nodes = []
    for fqn in firsts:
        node = next((node for node in graph.nodes if _within(node, fqn)), None)
        if node is None:
            raise CannotTrace(f"nothing in the trace belongs to {fqn}, with which a stage begins")
        first_nodes.append(node)
    cheap = _of_positions(graph)
    for fqn, node in zip(firsts, first_nodes, strict=True):
        with graph.inserting_before(node):
            cut = graph.call_function(torch.ops.pippy._pipe_split.default)  # what pipe_split() leaves in a trace
        _copy_across(graph, cut, cheap)
        _check_crossing(graph, cut, cheap, fqn)
    return traced


def _within(node: fx.Node, fqn: str) -> bool:
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return any(path == fqn or path.startswith(f"{fqn}.") for path, _kind in stack)


def _of_positions(graph: fx.Graph) -> set[fx.Node]:
    """What follows from the positions and from constants alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if (node.op == "placeholder" and node.target == _POSITIONS) or (
            node.op == "call_function" and all(given in found for given in inputs)
        ):
            found.add(node)
    return found


def _copy_across(graph: fx.Graph, cut: fx.Node, cheap: set[fx.Node]) -> None:
    """Computes anew, just after `cut`, every cheap value that is made before it and used after it."""
    copies: dict[fx.Node, fx.Node] = {}
    first = cut.next

    def copy(node: fx.Node) -> fx.Node:
        if node.op == "placeholder":
            return node
        if node not in copies:
            for given in node.all_input_nodes:
                copy(given)
            with graph.inserting_before(first):
                copies[node] = graph.node_copy(node, copy)
        return copies[node]

    before, after = _around(graph, cut)
    for node in after:
        for given in node.all_input_nodes:
            if given in cheap and given in before:
                node.replace_input_with(given, copy(given))
    cheap.update(copies.values())


def _check_crossing(graph: fx.Graph, cut: fx.Node, cheap: set[fx.Node], fqn: str) -> None:
    before, after = _around(graph, cut)
    crossing = [
        node.name for node in before if node.op != "get_attr" and node not in cheap and not after.isdisjoint(node.users)
    ]
    if len(crossing) != 1:
        raise CannotTrace(
            f"{len(crossing)} tensors ({', '.join(crossing)}) pass into the stage that begins with {fqn}, where one, "
            "the hidden state, can"
        )


def _around(graph: fx.Graph, cut: fx.Node) -> tuple[list[fx.Node], set[fx.Node]]:
    nodes = list(graph.nodes)
    return nodes[: nodes.index(cut)], set(nodes[nodes.index(cut) + 1 :])


def _as_cut(stage: nn.Module, order: Stages, masters: dict[str, torch.dtype]) -> nn.Module:
    """Gives a traced stage the form of one that was cut from the module."""
    assert isinstance(stage, fx.GraphModule)
    if held := [name for name, _buffer in stage.named_buffers()]:
        raise CannotTrace(f"the model holds tensors that are no parameters ({', '.join(held)})")
    _sign(stage)
    _replace_parameters(stage, lambda fqn, parameter: torch.empty(parameter.shape, dtype=masters[fqn], device="meta"))
    blocks = getattr(stage, order.blocks, None)
    setattr(stage, order.blocks, nn.ModuleDict({} if blocks is None else dict(blocks.named_children())))
    for name in (*order.first, *order.last):
        if not hasattr(stage, name):
            setattr(stage, name, None)
    return stage


def _replace_parameters(model: nn.Module, make: Callable[[str, nn.Parameter], Tensor]) -> None:
    """Puts `make(fqn, parameter)` in the place of each, which `Module.to` cannot on fake tensors. Tied ones come apart:
    a trace would put one parameter into two stages under one name. `build` of parallelize.py ties what one stage holds.
    """
    for path, module in list(model.named_modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            made = make(f"{path}.{name}" if path else name, parameter)
            module.register_parameter(name, nn.Parameter(made, requires_grad=parameter.requires_grad))


def _sign(stage: fx.GraphModule) -> None:
    """The signature of every stage: `forward(x, positions)`."""
    graph = stage.graph
    old = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_before(old[0]):
        new = {name: graph.placeholder(name) for name in ("x", _POSITIONS)}
    for node in old:
        node.replace_all_uses_with(new[_POSITIONS if node.target == _POSITIONS else "x"])
        graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    stage.recompile()
