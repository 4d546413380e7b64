"""Dense peak FLOP/s of accelerators by name, from the vendors' data sheets (no sparsity). Unknown is None, never a guess.

A utilisation against another device's peak is a number that looks right and is not; for a device that is not here, none is reported.
"""

from __future__ import annotations

_TERA = 1e12
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    # The longer name first: "H100 NVL" is not "H100".
    ("H100 NVL", {"bfloat16": 835 * _TERA, "float32": 60 * _TERA}),
    ("H100 PCIe", {"bfloat16": 756 * _TERA, "float32": 51 * _TERA}),
    ("H100", {"bfloat16": 989 * _TERA, "float32": 67 * _TERA}),
    ("H200", {"bfloat16": 989 * _TERA, "float32": 67 * _TERA}),
    ("B200", {"bfloat16": 2250 * _TERA, "float32": 75 * _TERA}),
    ("A100", {"bfloat16": 312 * _TERA, "float32": 19.5 * _TERA}),
    ("MI300X", {"bfloat16": 1307 * _TERA, "float32": 163.4 * _TERA}),
    ("MI250X", {"bfloat16": 383 * _TERA, "float32": 47.9 * _TERA}),
)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s of one device in `dtype` ("bfloat16" or "float32", without TF32); None where unknown, and on CPUs."""
    for name, peaks in _PEAKS:
        if name.lower() in device_name.lower():
            return peaks.get(dtype)
    return None
