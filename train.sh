#!/usr/bin/env bash
# ./train.sh CONFIG.toml [--section.key=value ...]: trains on this machine's devices, from any folder.
#
# The Python: $PYTHON if set, else the active one if it can import this checkout's titan, else .venv, which is made and
# filled the first time. After that nothing stands between the command and the launcher but a look at what is installed.
# Processes, nodes, restarts: environment variables, see `./train.sh --help`.
set -euo pipefail
trap 'exit 75' TERM INT USR1 # stopped before anything began; the launcher has handlers of its own
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/python.sh"
find_python
exec "$PYTHON" -m titan.launch "$@"
