"""Collections that say which tensors only cycles held."""

from __future__ import annotations

import gc
import logging

import pytest
import torch

from titan.runtime.garbage import collect


class Cycle:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.own = tensor, self


@pytest.mark.quick
def test_tensors_in_cycles_are_named_and_freed(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    Cycle(torch.zeros(3, 1024))
    with caplog.at_level(logging.WARNING, logger="titan"):
        assert collect(debug=True) == 1
    assert "cycles held 1 tensors, 0.0 MiB, of shapes (3, 1024)" in caplog.text
    assert not gc.garbage
    assert gc.get_debug() == 0
    assert collect(debug=True) == 0
    Cycle(torch.zeros(2))
    assert collect() == 0, "without the flag nothing is looked at"
    assert not [item for item in gc.get_objects() if type(item) is Cycle]
