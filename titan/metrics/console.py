"""What the console shows, as pure functions of values: a header at the start, a line a logged step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def header(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of `name  value`, aligned."""
    width = max(len(name) for name, _value in entries)
    return [f"{name:<{width}}  {value}" for name, value in entries]


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`, `3d04h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def step_line(step: int, steps: int, values: Mapping[str, float]) -> str:
    """One logged step; utilisation only where the device's peak is known."""
    shown = [
        f"step {step:>{len(str(steps))}}/{steps}",
        f"loss {values['loss']:.4f}",
        f"grad_norm {values['grad_norm']:.4f}",
        f"lr {values['lr']:.3e}",
        f"{values['tokens_per_second']:,.0f} tokens/s",
        f"{values['step_seconds']:.3f} s/step",
    ]
    if "mfu" in values:
        shown.append(f"mfu {values['mfu']:.1%}")
    shown += [f"memory {values['memory_gib']:.2f} GiB", f"eta {duration(values['eta_seconds'])}"]
    return "  ".join(shown)
