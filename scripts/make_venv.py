"""Makes .venv and installs the project into it, or mends one that is incomplete: `python scripts/make_venv.py [EXTRA]`.

Two first starts at once must not install into each other: the second waits for a lock and then finds the work done. The
lock is on pyproject.toml, which always exists, and the system frees it whatever happens to its holder. A mark in the
environment says that it is unfinished; one that was left by a killed start is made again from nothing.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"titan: this is Python {sys.version.split()[0]} ({sys.executable}); 3.11 or newer is needed.")

import fcntl
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "titan-setup-unfinished"


def say(text: str) -> None:
    print(f"titan: {text}", file=sys.stderr, flush=True)


def succeeds(*command: object) -> bool:
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0


def make(extra: list[str]) -> None:
    """Raises CalledProcessError where the environment or the packages cannot be had."""
    if UNFINISHED.exists() or not PYTHON.exists() or not succeeds(PYTHON, "-m", "pip", "--version"):
        say(f"making {VENV} with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    UNFINISHED.touch()
    project = f"{ROOT}[{','.join(extra)}]" if extra else str(ROOT)
    say("installing the project and its packages into it; the first time takes some minutes")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    options = ["--disable-pip-version-check", *quiet, "--editable", project]
    subprocess.run([str(PYTHON), "-m", "pip", "install", *options], check=True)
    UNFINISHED.unlink()
    say("installed")


def main(extra: list[str]) -> int:
    with (ROOT / "pyproject.toml").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process, which is setting up {VENV}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if PYTHON.exists() and succeeds(PYTHON, ROOT / "scripts" / "installed.py", *extra):
            return 0
        try:
            make(extra)
        except subprocess.CalledProcessError as error:
            say(f"this failed, see above: {' '.join(error.cmd)}")
            if "venv" in error.cmd:
                say("on Debian and Ubuntu: apt install python3-venv; or activate an environment that has the project")
            return 1
        except OSError as error:
            say(f"{VENV} cannot be made: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
