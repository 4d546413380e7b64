"""The launcher of the tests: `run_workers` over `tests.launch.worker`; `python -m tests.launch.start MODE FOLDER`."""

import sys
from pathlib import Path

from titan.launch.run import run_workers
from titan.launch.settings import Settings
from titan.runtime import log
from titan.runtime.errors import main_with_errors


def main() -> int:
    mode, folder = sys.argv[1:]
    settings = Settings.from_environment()
    log.start_launcher(folder)
    command = [sys.executable, "-m", "tests.launch.worker", mode, folder]
    return run_workers(settings, command, processes=settings.processes or 2, folder=Path(folder))


if __name__ == "__main__":
    sys.exit(main_with_errors(main))
