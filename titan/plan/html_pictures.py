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

MOST_NODES = 80
_OF_GROUP = {"tp": "var(--c0)", "cp": "var(--c5)", "fsdp": "var(--c2)", "dp_replicate": "var(--c3)", "pp": "var(--c4)"}

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
        colour = "var(--c8)" if name == "pipeline bubble" else f"var(--c{(*range(8), 9)[place % 9]})"
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
        if width > 5.8 * len(str(action.microbatch)) + 4:
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
    """Nodes as frames and their devices as squares, in the order of ranks; the groups of rank 0 are coloured."""
    world = plan.resolved.degrees.world_size
    per_node = min(plan.target.per_node, world)
    nodes = -(-world // per_node)
    shown = min(nodes, MOST_NODES)
    columns = min(per_node, 8)
    side = 26.0 if shown <= 4 else 18.0 if shown <= 16 else 12.0
    lines = -(-min(per_node, 64) // columns)
    width, height = columns * side + 22, lines * side + 34
    across = max(1, int((WIDTH + 10) // (width + 10)))
    groups: dict[str, set[int]] = {
        name: set(group.ranks) for name, group in plan.groups.items() if name != "world" and group.size > 1
    }
    parts = []
    for node in range(shown):
        x0, y0 = node % across * (width + 10), node // across * (height + 10)
        edge = ' stroke="var(--line)" rx="7"'
        parts.append(_rect(x0 + 1, y0 + 1, width - 2, height - 2, "none", extra=edge))
        parts.append(_text(x0 + 11, y0 + 18, f"node {node}", "soft"))
        for place, rank in enumerate(range(node * per_node, min(world, node * per_node + min(per_node, 64)))):
            mine = [name for name in _OF_GROUP if rank in groups.get(name, ())]
            fill = "var(--ink)" if rank == 0 else _OF_GROUP[mine[0]] if mine else "var(--idle)"
            talks = f": in rank 0's {' and '.join(mine)} group" if mine and rank else ""
            x, y = x0 + 11 + place % columns * side, y0 + 25 + place // columns * side
            parts.append(_rect(x, y, side - 2, side - 2, fill, f"rank {rank}{talks}", f' rx="{side / 6:.1f}"'))
    left_out = nodes - shown
    said = f"<p class='facts'>Not drawn: {left_out} more nodes, laid out alike.</p>" if left_out else ""
    keys = [("rank 0", "var(--ink)"), *((f"its {name} group", _OF_GROUP[name]) for name in _OF_GROUP if name in groups)]
    total = -(-shown // across) * (height + 10)
    return _svg(total, parts, "mesh") + _keys([*keys, ("others", "var(--idle)")]) + said
