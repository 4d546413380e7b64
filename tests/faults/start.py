"""The launcher over faulty workers: `python -m tests.faults.start PLAN CONFIG [overrides]`."""

from __future__ import annotations

import sys

from titan.launch.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], worker=("-m", "tests.faults.worker", sys.argv[1])))
