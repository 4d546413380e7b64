"""What one rank's failure looks like to all."""

from __future__ import annotations

import errno
import os

import pytest

from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointError

pytestmark = pytest.mark.quick


def test_the_system_error_behind_another_one_is_told() -> None:
    def write() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/disk/file")
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")  # what torch's zip writer says when it is closed

    with pytest.raises(CheckpointError) as caught:
        Agreement(None).first("writing /disk", write)
    said = "RuntimeError: unexpected pos 704 vs 598 (after [Errno 28] No space left on device: '/disk/file')"
    assert str(caught.value) == f"writing /disk: {said}"
