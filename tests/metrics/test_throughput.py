"""Rates: what is counted, over which time, and no utilisation where the device's peak is not known."""

from __future__ import annotations

import pytest

from titan.metrics import Throughput, peak_flops, throughput

pytestmark = pytest.mark.quick


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    return now


def test_rates_are_those_of_the_steps_since_the_last_read(clock):
    rates = Throughput(flops_per_token=10.0, peak=None, devices=4)
    for _ in range(5):
        clock[0] += 2.0
        rates.step(tokens=1000, waited=0.5)
    assert rates.read(steps_left=30) == {
        "tokens_per_second": 500.0,
        "tokens_per_second_per_device": 125.0,
        "step_seconds": 2.0,
        "data_seconds": 0.5,
        "eta_seconds": 60.0,
    }
    clock[0] += 1.0
    rates.step(tokens=1000, waited=0.0)
    again = rates.read(steps_left=0)
    assert (again["tokens_per_second"], again["data_seconds"], again["eta_seconds"]) == (1000.0, 0.0, 0.0)


def test_utilisation_is_model_flops_over_the_peak_of_all_devices(clock):
    rates = Throughput(flops_per_token=6e9, peak=8 * 989e12, devices=8)
    clock[0] += 10.0
    rates.step(tokens=4_000_000, waited=0.0)
    assert rates.read(steps_left=1)["mfu"] == pytest.approx(4e5 * 6e9 / (8 * 989e12))


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA GH200 480GB", 989.4e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("AMD Instinct MI300X", 1307.4e12),
        ("AMD Instinct MI250X", 191.5e12),
    ],
)
def test_known_devices_have_the_peak_of_their_data_sheet(name, bfloat16):
    assert peak_flops(name, "bfloat16") == pytest.approx(bfloat16)
    assert 0 < peak_flops(name, "float32") < bfloat16


@pytest.mark.parametrize(
    "name",
    [
        "AMD EPYC 9654 96-Core Processor",
        "Intel(R) Xeon(R) Platinum 8488C",
        "NVIDIA A10G",
        "NVIDIA A1000",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GRID A100-10C",
        "AMD Instinct MI250X/MI250",
        "",
    ],
)
def test_unknown_devices_and_parts_of_one_have_no_peak(name):
    assert peak_flops(name, "bfloat16") is None
    assert peak_flops(name, "float32") is None


def test_a_device_without_bfloat16_units_has_no_peak_for_it():
    assert peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak_flops("Tesla V100-SXM2-16GB", "float32") == pytest.approx(15.7e12)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="float8"):
        peak_flops("NVIDIA H100 PCIe", "float8")
