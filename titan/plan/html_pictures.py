"""Pictures of the page, as SVG with the colours of `html_style`: memory bars, the step, the timeline, the mesh."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from titan.plan.build import Plan
from titan.plan.report_data import GROUPS, gib, grouped, seconds
from titan.plan.trace import NAMES

WIDTH = 1120
MOST_EVENTS = 8000
"""Actions that a timeline draws; beyond that the page says so, and `--trace` has them all."""

swatch = {name: f"var(--c{place})" for place, name in enumerate(GROUPS)}
"""Colour of each group of memory."""


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "", extra: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}" fill="{fill}"{extra}>'
        f"{inner}</rect>"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _keys(colours: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in colours)
    return f'<div class="keys">{shown}</div>'


def memory_bars(plan: Plan) -> str:
    """A stacked bar a pipeline rank, and the device's limit."""
    limit = plan.target.limit
    left, right, row = 92, 150, 26
    scale = (WIDTH - left - right) / max(limit or 0, plan.heaviest.peak)
    parts = []
    for place, memory in enumerate(plan.memory):
        y, x = place * row + 18, float(left)
        parts.append(_text(0, y + 14, f"pp rank {memory.rank}" if len(plan.memory) > 1 else "each rank"))
        for name, size in grouped(memory).items():
            share = f"{name}: {gib(size)}, {size / memory.peak:.0%}"
            parts.append(_rect(x, y, size * scale, row - 7, swatch[name], share))
            x += size * scale
        over = limit is not None and memory.peak > limit
        parts.append(_text(x + 8, y + 14, f"{gib(memory.peak)}{' — too much' if over else ''}"))
    height = len(plan.memory) * row + 22
    if limit is not None:
        x = left + limit * scale
        dash = 'stroke-width="2" stroke-dasharray="5 3"'
        parts.append(f'<line x1="{x:.1f}" y1="14" x2="{x:.1f}" y2="{height}" stroke="var(--bad)" {dash}/>')
        parts.append(_text(x, 10, f"limit {gib(limit)}", "soft", "middle" if x < WIDTH - 60 else "end"))
    used = {name for memory in plan.memory for name in grouped(memory)}
    return _svg(height, parts, "memory") + _keys((name, colour) for name, colour in swatch.items() if name in used)


def terms_bar(plan: Plan) -> str:
    """What a step's time goes to, as one bar."""
    terms = sorted(plan.time.terms.items(), key=lambda item: -item[1])
    parts, x, keys = [], 0.0, []
    for place, (name, value) in enumerate(terms):
        width = value / plan.time.seconds * WIDTH
        colour = "var(--c8)" if name == "pipeline bubble" else f"var(--c{place % 8})"
        parts.append(_rect(x, 0, width, 34, colour, f"{name}: {seconds(value)}, {value / plan.time.seconds:.1%}"))
        if width > 7.5 * len(name) + 12:
            parts.append(_text(x + 8, 21, name, "on"))
        keys.append((name, colour))
        x += width
    return _svg(36, parts, "time of a step") + _keys(keys)


def timeline_picture(plan: Plan) -> str:
    """Every action of every pipeline rank."""
    timeline = plan.time.timeline
    events = sorted(timeline.events, key=lambda event: event.start)
    shown = events[:MOST_EVENTS]
    end = max(event.stop for event in shown)
    left, row = 62, 24
    scale = (WIDTH - left) / end
    parts = [_rect(left, rank * row, WIDTH - left, row - 4, "var(--idle)") for rank in range(timeline.ranks)]
    parts += [_text(0, rank * row + 15, f"rank {rank}") for rank in range(timeline.ranks)]
    first = min(event.action.stage for event in shown)
    for event in shown:
        action, x = event.action, left + event.start * scale
        width = (event.stop - event.start) * scale
        # Later stages of a rank are paler, so that a rank's virtual stages can be told apart.
        depth = action.stage // timeline.ranks - first // timeline.ranks
        pale = f' fill-opacity="{max(0.45, 1 - 0.32 * depth):.2f}"'
        colour = f"var(--{action.kind.lower()})"
        what = f"{NAMES[action.kind]} of microbatch {action.microbatch}, stage {action.stage}"
        title = f"{what}: {seconds(event.start)} to {seconds(event.stop)}"
        parts.append(_rect(x, event.rank * row, width - 0.5, row - 4, colour, title, pale))
        if width > 6.5 * len(str(action.microbatch)) + 5:
            parts.append(_text(x + width / 2, event.rank * row + 14, str(action.microbatch), "on", "middle"))
    height = timeline.ranks * row + 20
    for tick in range(6):
        x = left + (WIDTH - left) * tick / 5
        anchor = "start" if tick == 0 else "end" if tick == 5 else "middle"
        parts.append(_text(x, height - 4, seconds(end * tick / 5), "soft", anchor))
    kinds = [kind for kind in NAMES if any(event.action.kind == kind for event in shown)]
    keys = _keys([(NAMES[kind], f"var(--{kind.lower()})") for kind in kinds] + [("waiting", "var(--idle)")])
    cut = len(events) - len(shown)
    more = f"<p>The first {MOST_EVENTS} actions; {cut} more are in the file of --trace.</p>" if cut else ""
    pale = "<p class='facts'>Numbers are microbatches; paler are later stages of the same rank.</p>"
    return _svg(height, parts, "timeline") + keys + pale + more


def mesh_picture(plan: Plan) -> str:
    """Ranks as squares: a row a tp group, a column a pipeline rank, a frame a node; groups of rank 0 are coloured."""
    degrees, per_node = plan.resolved.degrees, plan.target.per_node
    inner = degrees.tp
    rows = degrees.world_size // degrees.pp // inner
    shown_rows, shown_inner, shown_pp = min(rows, 16), min(inner, 16), min(degrees.pp, 8)
    side = max(8.0, min(24.0, (WIDTH - 60) / shown_pp / (shown_inner + 1.2)))
    block = side * shown_inner + side * 1.2
    groups: dict[str, set[int]] = {name: set(group.ranks) for name, group in plan.groups.items() if name != "world"}
    colours = {
        "tp": "var(--c0)",
        "cp": "var(--c5)",
        "fsdp": "var(--c2)",
        "dp_replicate": "var(--c3)",
        "pp": "var(--c4)",
    }
    parts = []
    for stage in range(shown_pp):
        x0 = 60 + stage * block
        if degrees.pp > 1:
            parts.append(_text(x0, 12, f"pp {stage}", "soft"))
        for line in range(shown_rows):
            for place in range(shown_inner):
                rank = stage * rows * inner + line * inner + place
                mine = [name for name in colours if rank in groups.get(name, ())]
                fill = "var(--ink)" if rank == 0 else colours[mine[0]] if mine else "var(--idle)"
                title = f"rank {rank}, node {rank // per_node}" + (
                    f": in rank 0's {', '.join(mine)} group" if mine else ""
                )
                x, y = x0 + place * side, 20 + line * side
                edge = f' stroke="var(--panel)" stroke-width="1.5" rx="{side / 6:.1f}"'
                parts.append(_rect(x, y, side - 1, side - 1, fill, title, edge))
    for line in range(shown_rows):
        node = line * inner // per_node
        if line * inner % per_node == 0 or per_node < inner:
            parts.append(_text(0, 20 + line * side + side * 0.7, f"node {node}", "soft"))
            parts.append(
                f'<line x1="56" x2="{60 + shown_pp * block - side * 1.2:.0f}" y1="{19 + line * side:.1f}" '
                f'y2="{19 + line * side:.1f}" stroke="var(--line)"/>'
            )
    height = 26 + shown_rows * side
    left_out = []
    if rows > shown_rows:
        left_out.append(f"{rows - shown_rows} more rows")
    if inner > shown_inner:
        left_out.append(f"{inner - shown_inner} more ranks a row")
    if degrees.pp > shown_pp:
        left_out.append(f"{degrees.pp - shown_pp} more pipeline ranks")
    said = f"<p class='facts'>Not drawn: {', '.join(left_out)}.</p>" if left_out else ""
    keys = [("rank 0", "var(--ink)"), *((f"its {name} group", colours[name]) for name in colours if name in groups)]
    return _svg(height, parts, "mesh") + _keys(keys) + said
