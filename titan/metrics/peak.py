"""Dense peak FLOP/s of accelerators by name, from the vendors' data sheets. Unknown is None, never a guess.

A utilisation against another device's peak is a number that looks right and is not; for a device that is not here, for
a part of one (MIG, a laptop's), and for CPUs none is reported. bfloat16 is the matrix units' rate without sparsity,
float32 the rate without TF32, which torch leaves off unless told otherwise.
"""

from __future__ import annotations

import re

_PEAKS: dict[str, tuple[float | None, float]] = {
    # name: (bfloat16, float32) in TFLOP/s of what torch calls one device; the longer name of two comes first
    "GB200": (2500.0, 80.0),
    "B200": (2250.0, 75.0),
    "GH200": (989.4, 66.9),
    "H200 NVL": (835.0, 60.0),
    "H200": (989.4, 66.9),
    "H100 NVL": (835.0, 60.0),
    "H100 PCIe": (756.0, 51.2),
    "H100": (989.4, 66.9),
    "H800 PCIe": (756.0, 51.2),
    "H800": (989.4, 66.9),
    "H20": (148.0, 44.0),
    "A100": (312.0, 19.5),
    "A800": (312.0, 19.5),
    "A40": (149.7, 37.4),
    "A30": (165.0, 10.3),
    "A10": (125.0, 31.2),
    "L40S": (362.0, 91.6),
    "L40": (181.0, 90.5),
    "L4": (121.0, 30.3),
    "V100-SXM2": (None, 15.7),
    "V100-PCIE": (None, 14.0),
    "MI355X": (2516.6, 157.3),
    "MI350X": (2306.9, 144.2),
    "MI325X": (1307.4, 163.4),
    "MI300X": (1307.4, 163.4),
    "MI300A": (980.6, 122.6),
    "MI250X": (191.5, 23.9),  # torch sees each of its two dies as a device
    "MI210": (181.0, 22.6),
}
_PART = re.compile(r"\b(MIG|vGPU|GRID|Laptop|Max-Q)\b", re.IGNORECASE)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """FLOP/s of one device in `dtype`, "bfloat16" or "float32"; None where unknown.

    Raises ValueError for another dtype.
    """
    if dtype not in ("bfloat16", "float32"):
        raise ValueError(f"no peaks are listed for {dtype}: bfloat16 or float32")
    if _PART.search(device_name):
        return None
    for name, (bfloat16, float32) in _PEAKS.items():
        # A whole word, so that "A10" is not found in "A100", and not one of two: "MI250X/MI250".
        if re.search(rf"(?<![\w/]){re.escape(name)}(?![\w/])", device_name, re.IGNORECASE):
            tera = bfloat16 if dtype == "bfloat16" else float32
            return None if tera is None else tera * 1e12
    return None
