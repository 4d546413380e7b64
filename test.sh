#!/usr/bin/env bash
# ./test.sh [pytest arguments]: runs the tests; -m quick for those of seconds, -m full for those of minutes.
#
# The Python is found or made as train.sh does it, with the development tools.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/python.sh"
find_python dev
cd -- "$ROOT"
# Tests run several processes at once; more threads than cores make them several times slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$PYTHON" -m pytest "$@"
