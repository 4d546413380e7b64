"""The plan in a terminal: the verdict first, then mesh, memory, traffic and time, each a small table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from titan.plan.build import Plan
from titan.plan.facts import Memory
from titan.plan.report_data import gib, grouped, merged, ranks, seconds, verdict
from titan.plan.schedule import in_flight
from titan.plan.search import Found

_BAR = 36


def show(plan: Plan, console: Console) -> None:
    """Prints everything."""
    _header(plan, console)
    console.print(_mesh(plan))
    console.print(_memory(plan))
    console.print(_items(plan.heaviest))
    if plan.traffic:
        console.print(_traffic(plan))
    console.print(_time(plan))
    for sentence in plan.request.notes:
        console.print(f"note: {sentence}", highlight=False)
    for sentence in plan.resolved.warnings:
        console.print(f"warning: {sentence}", highlight=False)


def _header(plan: Plan, console: Console) -> None:
    resolved, time, target = plan.resolved, plan.time, plan.target
    config, batch, degrees = resolved.config, resolved.batch, resolved.degrees
    count = resolved.spec.parameter_count(resolved.model_args)
    lines = [
        ("model", f"{config.model.name} {config.model.flavor}, {count:,} parameters"),
        ("mesh", f"{degrees} ({degrees.world_size} x {target.device.title}, {_nodes(plan)})"),
        (
            "batch",
            f"{batch.global_rows} rows of {config.training.seq_len} tokens = {degrees.batch} batch ranks x "
            f"{batch.accumulation} accumulation x {batch.rows} rows"
            + (f" in {batch.microbatches} microbatches" if degrees.pp > 1 else ""),
        ),
        ("memory", verdict(plan)),
        (
            "speed",
            f"{seconds(time.seconds)} a step, {time.tokens_per_second:,.0f} tokens/s, "
            f"{time.tokens_per_second_per_device:,.0f} a device, MFU {time.mfu:.1%}",
        ),
    ]
    for name, text in lines:
        style = "" if name != "memory" else "green" if plan.fits else "bold red"
        console.print(Text(f"{name:<8} ").append(text, style), soft_wrap=True)
    if not plan.fits:
        change = plan.remedy or "none of the usual single changes is enough: see --search, or use more devices"
        console.print(Text("change   ").append(change, "bold"), soft_wrap=True)


def _nodes(plan: Plan) -> str:
    world, per_node = plan.resolved.degrees.world_size, plan.target.per_node
    nodes = -(-world // per_node)
    return f"{nodes} nodes of {per_node}" if nodes > 1 else "one node"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=place == 0)
    return table


def _mesh(plan: Plan) -> Table:
    table = _table("\nWho talks to whom", "dimension", ">ranks", "group 0", "where", ">GB/s a rank", "collectives")
    for group in plan.groups.values():
        used = sorted({line.operation for line in plan.traffic if line.dimension == group.dimension})
        where = "inside a node" if group.inside else f"across nodes, {group.members} a node"
        rate = f"{group.bandwidth / 1e9:.0f}"
        table.add_row(group.dimension, str(group.size), ranks(group.ranks), where, rate, ", ".join(used))
    if not plan.groups:
        table.add_row("one process", "1", "0", "", "", "")
    return table


def _memory(plan: Plan) -> Table:
    table = _table("\nMemory of each pipeline rank", "pp rank", "stages", ">in flight", ">peak", "", "where")
    scale = max(plan.target.limit or 0, plan.heaviest.peak)
    for memory in plan.memory:
        filled = round(memory.peak / scale * _BAR)
        over = plan.target.limit is not None and memory.peak > plan.target.limit
        flying = in_flight(plan.time.programs[memory.rank])
        table.add_row(
            str(memory.rank),
            ", ".join(map(str, memory.stages)),
            "+".join(str(count) for _stage, count in sorted(flying.items())),
            gib(memory.peak),
            Text("█" * filled, "red" if over else "green").append("░" * (_BAR - filled), "dim"),
            memory.where,
        )
    return table


def _items(memory: Memory) -> Table:
    table = _table(f"\nAt the peak of pp rank {memory.rank}", "what", ">bytes", ">part", "of it")
    for group, size in grouped(memory).items():
        parts = {name: each for name, each in memory.items.items() if name.startswith(f"{group}.")}
        inner = ", ".join(f"{name.partition('.')[2]} {gib(each)}" for name, each in parts.items())
        table.add_row(group, gib(size), f"{size / memory.peak:.0%}", inner)
    return table


def _traffic(plan: Plan) -> Table:
    title = "\nCommunication of a rank in a step (the busiest pipeline rank of each kind)"
    table = _table(title, "dimension", "operation", "what", ">calls", ">bytes", ">sent", "")
    for line in merged(plan.traffic):
        waits = "computation waits" if line.exposed else "beside computation"
        sent = gib(line.wire_bytes)
        table.add_row(line.dimension, line.operation, line.purpose, f"{line.calls:,}", gib(line.bytes), sent, waits)
    return table


def _time(plan: Plan) -> Table:
    time = plan.time
    table = _table(f"\nA step of {seconds(time.seconds)}", "term", ">seconds", ">part", "")
    for name, value in sorted(time.terms.items(), key=lambda item: -item[1]):
        share = value / time.seconds
        table.add_row(name, seconds(value), f"{share:.1%}", Text("█" * round(share * _BAR), "cyan"))
    if plan.resolved.degrees.pp > 1:
        table.add_row("", "", "", f"all ranks wait {time.timeline.bubble:.1%} of the schedule's time")
    return table


def show_search(found: Found, console: Console, most: int = 20) -> None:
    """Prints the layouts, and what refused the others."""
    columns = ("layout", "schedule", ">s a step", ">tokens/s a device", ">peak", "")
    table = _table(f"\n{len(found.ranked)} layouts by predicted time", *columns)
    words = {True: "fits", False: "does not fit", None: "memory not taken"}
    for candidate in found.ranked[:most]:
        table.add_row(
            str(candidate.resolved.degrees),
            candidate.schedule,
            f"{candidate.seconds:.2f}",
            f"{candidate.tokens:,.0f}",
            gib(candidate.peak) if candidate.peak is not None else "",
            Text(words[candidate.fits], {True: "green", False: "red", None: "dim"}[candidate.fits]),
        )
    console.print(table)
    if found.too_large:
        console.print(
            f"\n{found.too_large} layouts do not fit by parameters, gradients and optimizer state alone",
            highlight=False,
        )
    if found.refused:
        refused = _table("\nRefused", "by", ">layouts", "for example")
        for key, refusal in sorted(found.refused.items(), key=lambda item: -item[1].count):
            refused.add_row(key, str(refusal.count), f"{refusal.layout}: {refusal.text}")
        console.print(refused)
