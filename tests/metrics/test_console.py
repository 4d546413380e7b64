"""The header and the line of a step, as text."""

from __future__ import annotations

import pytest

from titan.metrics import header, step_line
from titan.metrics.console import duration

pytestmark = pytest.mark.quick
VALUES = {
    "loss": 5.54321,
    "grad_norm": 0.98765,
    "lr": 8e-4,
    "tokens": 1_000_000,
    "tokens_per_second": 12345.6,
    "step_seconds": 0.5,
    "data_seconds": 0.001,
    "memory_gib": 1.234,
    "eta_seconds": 3725.0,
}


def test_a_step_is_one_plain_line():
    assert step_line(7, 100, VALUES) == (
        "step   7/100  loss 5.5432  grad_norm 0.9877  lr 8.000e-04  12,346 tokens/s  0.500 s/step  "
        "memory 1.23 GiB  eta 1h02m"
    )


def test_what_is_known_or_of_note_is_shown_as_well():
    line = step_line(1, 1, VALUES | {"mfu": 0.4321, "tokens_per_second_per_device": 1543.2, "data_seconds": 0.1})
    assert "12,346 tokens/s (1,543 a device)" in line
    assert "data wait 20%" in line
    assert "mfu 43.2%" in line


def test_one_device_has_one_rate():
    assert "device" not in step_line(1, 1, VALUES | {"tokens_per_second_per_device": VALUES["tokens_per_second"]})


def test_the_line_does_not_move_as_steps_grow():
    assert step_line(9, 1000, VALUES).index("loss") == step_line(1000, 1000, VALUES).index("loss")


def test_the_header_is_aligned():
    assert header([("model", "llama3"), ("mesh", "tp 2")]) == ["model  llama3", "mesh   tp 2"]
    assert header([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (3599.7, "1h00m"),
        (7500, "2h05m"),
        (273600, "3d04h"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert duration(seconds) == text
