"""The pool of ranks: a rank whose caller has left, with the first error of another rank, ends without a word."""

from __future__ import annotations

import multiprocessing as mp
import pickle

import pytest
import torch

from titan.parity import ranks

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("job", [(len, ("abc",), {}), (len, (), {})], ids=["answers", "fails"])
def test_a_rank_whose_caller_has_left_ends_quietly(job: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "0")  # put back afterwards
    caller, own = mp.Pipe()
    caller.send(("unused", 1.0, pickle.dumps(job)))
    caller.close()
    ranks._main(0, 1, own, {}, torch.get_num_threads())
    own.close()
