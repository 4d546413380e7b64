"""What a device can do, from its maker's data sheet: the plan's only knowledge of hardware.

Rates are peaks, dense (no sparsity), one direction of a link; what a run reaches of them is the cost model's business.
`memory` is what the driver reports, less `RESERVED` for its context and the communication library, which no allocator
sees. The CPU entry is one core of a recent server, so that small runs can be planned too: an order of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB, GB, TERA = 2**30, 1e9, 1e12
RESERVED = 2 * GIB


@dataclass(frozen=True)
class Device:
    """One accelerator and its place in a node.

    Attributes:
        name: what `--device` takes.
        title: the product.
        flops: peak FLOP/s of matrix products by dtype: float8, bfloat16, float32.
        attention: fraction of the bfloat16 peak that torch's fused attention reaches.
        memory: bytes that a process can use; None where no limit is known.
        bandwidth: bytes/s of its memory.
        link: bytes/s to its peers in the node.
        network: bytes/s to other nodes.
        host: bytes/s to the memory of its host.
        per_node: devices in a usual node.
        source: where the numbers are from.
    """

    name: str
    title: str
    flops: dict[str, float]
    attention: float
    memory: int | None
    bandwidth: float
    link: float
    network: float
    host: float
    per_node: int
    source: str


def _gpu(
    name: str, title: str, *, bf16: float, fp8: float, fp32: float, mib: int, source: str, **rest: float
) -> Device:
    flops = {"float8": fp8 * TERA, "bfloat16": bf16 * TERA, "float32": fp32 * TERA}
    memory = mib * 2**20 - RESERVED
    attention = rest.pop("attention")
    rates = {key: value * GB for key, value in rest.items()}
    return Device(name, title, flops, attention, memory, per_node=8, source=source, **rates)


# Attention: FlashAttention-2, which torch's SDPA runs, reaches 35 % on the H100 (Shah et al., 2024, arXiv:2407.08608,
# abstract) and 50-73 % on the A100 (Dao, 2023, arXiv:2307.08691, abstract). Nothing comparable is published for the
# B200 and the MI300X: theirs is the H100's.
# Networks: one 400 Gb/s port a GPU (DGX H100, DGX B200 and the like), 200 Gb/s for the A100 (DGX A100).
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _gpu(
            "h100", "NVIDIA H100 SXM 80 GB", bf16=989.4, fp8=1978.9, fp32=66.9, mib=81559, bandwidth=3350, link=450,
            network=50, host=64, attention=0.35, source="NVIDIA H100 Tensor Core GPU data sheet",
        ),
        _gpu(
            # Grand Teton nodes of the published torchtitan figures; their power is capped at 500 W of 700 W.
            "h100-96gb", "NVIDIA H100 SXM 96 GB HBM2e", bf16=989.4, fp8=1978.9, fp32=66.9, mib=97871, bandwidth=2400,
            link=450, network=50, host=64, attention=0.35,
            source="torchtitan benchmarks/llama3_h100_202412_torchtitan.md (memory), H100 data sheet (peaks)",
        ),
        _gpu(
            "h200", "NVIDIA H200 SXM 141 GB", bf16=989.4, fp8=1978.9, fp32=66.9, mib=143771, bandwidth=4800, link=450,
            network=50, host=64, attention=0.35, source="NVIDIA H200 Tensor Core GPU data sheet",
        ),
        _gpu(  # no float8 units: such products run in bfloat16
            "a100", "NVIDIA A100 SXM 80 GB", bf16=312.0, fp8=312.0, fp32=19.5, mib=81920, bandwidth=2039, link=300,
            network=25, host=32, attention=0.6, source="NVIDIA A100 Tensor Core GPU data sheet",
        ),
        _gpu(
            "b200", "NVIDIA B200 SXM 180 GB", bf16=2250.0, fp8=4500.0, fp32=75.0, mib=183359, bandwidth=7700, link=900,
            network=50, host=64, attention=0.35, source="NVIDIA HGX B200 data sheet, an eighth of it",
        ),
        _gpu(  # seven Infinity Fabric links of 64 GB/s
            "mi300x", "AMD Instinct MI300X 192 GB", bf16=1307.4, fp8=2614.9, fp32=163.4, mib=196592, bandwidth=5300,
            link=448, network=50, host=64, attention=0.35, source="AMD Instinct MI300X data sheet",
        ),
        Device(
            "cpu", "one CPU core", {"float8": 359e9, "bfloat16": 359e9, "float32": 70e9}, 0.3, None, 10 * GB, 2 * GB,
            1 * GB, 10 * GB, 1_000_000, "measured on one core of a server with AVX512-BF16 (gloo, torch 2.13)",
        ),
    )
}  # fmt: skip
