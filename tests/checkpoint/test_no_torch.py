"""`titan checkpoint list` and `verify` answer at once: they import no torch."""

from __future__ import annotations

import subprocess
import sys

from tests.checkpoint.toy import saved


def test_list_and_verify_import_no_torch(tmp_path):
    saved(tmp_path, [1])
    code = (
        "import sys; from titan.cli import main; "
        f"codes = [main(['checkpoint', one, {str(tmp_path)!r}]) for one in ('list', 'verify')]; "
        "sys.exit(str(codes) if codes != [0, 0] else 'torch was imported' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
