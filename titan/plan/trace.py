"""The timeline as a trace that Perfetto opens (the Trace Event Format): a thread a pipeline rank."""

from __future__ import annotations

from typing import Any

from titan.plan.schedule import Timeline

NAMES = {"F": "forward", "B": "backward", "I": "backward, input", "W": "backward, weights"}
"""What the kinds of actions are called."""


def trace(timeline: Timeline) -> dict[str, Any]:
    """A JSON object; times in microseconds."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "predicted step"}},
        *(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"pp rank {rank}"}}
            for rank in range(timeline.ranks)
        ),
    ]
    for event in timeline.events:
        action = event.action
        events.append(
            {
                "ph": "X",
                "name": f"{action.kind}{action.microbatch} stage {action.stage}",
                "cat": NAMES[action.kind],
                "pid": 0,
                "tid": event.rank,
                "ts": event.start * 1e6,
                "dur": (event.stop - event.start) * 1e6,
                "args": {"stage": action.stage, "microbatch": action.microbatch},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
