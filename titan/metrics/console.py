"""What the console shows, as pure functions of values: a header at the start, a line a logged step.

Plain text: colour is the log handler's, which leaves it off where the output is no terminal or
`metrics.disable_color_printing` is set. A number that is not known is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_DATA_SHARE_SHOWN = 0.05


def header(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of `name  value`, aligned."""
    width = max((len(name) for name, _value in entries), default=0)
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
    """One logged step.

    Args:
        step, steps: this one, and the last.
        values: loss, grad_norm, lr, tokens_per_second, step_seconds, memory_gib, eta_seconds; shown where given: mfu,
            tokens_per_second_per_device where it is another number, data_seconds where more than 5 % of the step went
            by in waiting for data.
    """
    rate = f"{values['tokens_per_second']:,.0f} tokens/s"
    one = values.get("tokens_per_second_per_device", values["tokens_per_second"])
    if one != values["tokens_per_second"]:
        rate += f" ({one:,.0f} a device)"
    shown = [
        f"step {step:>{len(str(steps))}}/{steps}",
        f"loss {values['loss']:.4f}",
        f"grad_norm {values['grad_norm']:.4f}",
        f"lr {values['lr']:.3e}",
        rate,
        f"{values['step_seconds']:.3f} s/step",
    ]
    waited = values.get("data_seconds", 0.0)
    if waited > _DATA_SHARE_SHOWN * values["step_seconds"]:
        shown.append(f"data wait {waited / values['step_seconds']:.0%}")
    if "mfu" in values:
        shown.append(f"mfu {values['mfu']:.1%}")
    shown += [f"memory {values['memory_gib']:.2f} GiB", f"eta {duration(values['eta_seconds'])}"]
    return "  ".join(shown)
