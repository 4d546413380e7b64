"""The plan as one page: verdict, mesh, memory, timeline, time and traffic, readable at a glance, in light and dark.

No script and nothing loaded from elsewhere: the file can be sent around. Pictures are in `html_pictures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from titan.plan.build import Plan
from titan.plan.html_pictures import memory_bars, mesh_picture, swatch, terms_bar, timeline_picture
from titan.plan.html_style import STYLE
from titan.plan.report_data import gib, grouped, merged, ranks, seconds, verdict
from titan.plan.schedule import in_flight


def page(plan: Plan) -> str:
    """The whole document."""
    config = plan.resolved.config
    title = f"titan plan: {config.model.name} {config.model.flavor} on {plan.resolved.degrees.world_size} devices"
    sections = [
        _head(plan),
        _section("Memory of each pipeline rank", memory_bars(plan), _memory_table(plan)),
        _section("A step", terms_bar(plan), _terms_table(plan)),
        _section("Timeline of the schedule", timeline_picture(plan)) if plan.resolved.degrees.pp > 1 else "",
        _section("Mesh: who talks to whom", mesh_picture(plan), _mesh_table(plan)) if plan.groups else "",
        _section("Communication of a rank in a step", _traffic_table(plan)) if plan.traffic else "",
        _notes(plan),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><main><h1>{escape(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are markup already; a column whose name begins with > holds numbers."""
    kinds = [' class="number"' if column.startswith(">") else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(name.lstrip('>'))}</th>" for kind, name in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _head(plan: Plan) -> str:
    resolved, time, target = plan.resolved, plan.time, plan.target
    config, batch, degrees = resolved.config, resolved.batch, resolved.degrees
    pp = degrees.pp > 1
    peak = plan.heaviest.peak
    limit = f"of {gib(target.limit)}" if target.limit is not None else "no limit known"
    cards = [
        ("fits" if plan.fits else "does not fit", gib(peak), limit, "good" if plan.fits else "bad"),
        ("step", seconds(time.seconds), f"{time.tokens / 1e6:.2f} M tokens", ""),
        ("tokens/s a device", f"{time.tokens_per_second_per_device:,.0f}", f"{time.tokens_per_second:,.0f} in all", ""),
        ("model FLOPs utilization", f"{time.mfu:.1%}", f"of {target.device.title}", ""),
        (
            "pipeline bubble",
            f"{time.timeline.bubble:.1%}" if pp else "none",
            _schedule(plan) if pp else "one stage",
            "",
        ),
    ]
    shown = "".join(
        f'<div class="card {kind}"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
        for name, value, more, kind in cards
    )
    count = resolved.spec.parameter_count(resolved.model_args)
    facts = [
        f"<b>{escape(config.model.name)} {escape(config.model.flavor)}</b>, {count:,} parameters",
        f"mesh <b>{escape(str(degrees))}</b>",
        f"{batch.global_rows} rows of {config.training.seq_len} tokens a step = {degrees.batch} batch ranks x "
        f"{batch.accumulation} accumulation x {batch.rows} rows"
        + (f" in {batch.microbatches} microbatches" if pp else ""),
        f"activation checkpointing <b>{escape(config.activation_checkpoint.mode)}</b>, compile "
        f"<b>{'on' if config.compile.enable else 'off'}</b>",
    ]
    text = f'<p class="facts">{" · ".join(facts)}</p><p class="verdict">{escape(verdict(plan))}</p>'
    if not plan.fits:
        change = plan.remedy or "no single one of the usual changes is enough"
        text += f'<p class="verdict"><b>What would make it fit:</b> <code>{escape(change)}</code></p>'
    return f'<div class="cards">{shown}</div>{text}'


def _schedule(plan: Plan) -> str:
    parallelism = plan.resolved.config.parallelism
    return parallelism.pipeline_parallel_schedule_csv or parallelism.pipeline_parallel_schedule


def _memory_table(plan: Plan) -> str:
    peaks = []
    for memory in plan.memory:
        flying = in_flight(plan.time.programs[memory.rank])
        held = " + ".join(str(count) for _stage, count in sorted(flying.items()))
        stages = ", ".join(map(str, memory.stages))
        peaks.append([str(memory.rank), stages, held, f"<b>{gib(memory.peak)}</b>", escape(memory.where)])
    names = sorted({name for memory in plan.memory for name in grouped(memory)}, key=list(swatch).index)
    parts = [[str(memory.rank), *(gib(grouped(memory).get(name, 0)) for name in names)] for memory in plan.memory]
    inner = sorted(plan.heaviest.items.items(), key=lambda item: -item[1])
    title = f"Everything that pp rank {plan.heaviest.rank} holds at its peak"
    columns = ["pp rank", "stages", "microbatches in flight", ">peak", "where"]
    return (
        _table(columns, peaks)
        + _details("By what it is for", _table(["pp rank", *(f">{name}" for name in names)], parts))
        + _details(title, _table(["what", ">bytes"], [[escape(name), gib(size)] for name, size in inner]))
    )


def _details(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _terms_table(plan: Plan) -> str:
    total = plan.time.seconds
    rows = [
        [escape(name), seconds(value), f"{value / total:.1%}"]
        for name, value in sorted(plan.time.terms.items(), key=lambda item: -item[1])
    ]
    return _table(["term", ">seconds", ">part"], rows)


def _mesh_table(plan: Plan) -> str:
    rows = []
    for group in plan.groups.values():
        used = sorted({line.operation for line in plan.traffic if line.dimension == group.dimension})
        where = "inside a node" if group.inside else f"across nodes, {group.members} a node"
        rate = f"{group.bandwidth / 1e9:.0f}"
        rows.append([group.dimension, str(group.size), ranks(group.ranks), where, rate, ", ".join(used)])
    return _table(["dimension", ">ranks", "group 0", "where", ">GB/s a rank", "collectives"], rows)


def _traffic_table(plan: Plan) -> str:
    rows = [
        [
            line.dimension,
            line.operation,
            escape(line.purpose),
            f"{line.calls:,}",
            gib(line.bytes),
            gib(line.wire_bytes),
            "computation waits" if line.exposed else "beside computation",
        ]
        for line in merged(plan.traffic)
    ]
    return _table(["dimension", "operation", "what", ">calls", ">bytes", ">sent", ""], rows)


def _notes(plan: Plan) -> str:
    device = plan.target.device
    said = [*plan.request.notes, *plan.resolved.warnings, f"device: {device.title}, from {device.source}"]
    return f"<section><h2>Notes</h2><ul>{''.join(f'<li>{escape(each)}</li>' for each in said)}</ul></section>"
