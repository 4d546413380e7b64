# Sourced by train.sh and test.sh: `find_python [EXTRA]` sets PYTHON and ROOT.
#
# The first that is complete of: the activated environment, .venv, the python3 on the PATH; else .venv is made or mended.
# $PYTHON, if set, is taken as it is. Complete means this checkout's titan and every package that pyproject.toml asks for,
# which installed.py reads from metadata: importing torch would take seconds, this takes a tenth of one.

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

find_python() {
    local extra="${1:-}" active candidate
    if [[ -n "${PYTHON:-}" ]]; then return; fi
    active="$(type -P python3 || type -P python || true)"
    for candidate in "${VIRTUAL_ENV:-${CONDA_PREFIX:-}}/bin/python" "$ROOT/.venv/bin/python" "$active"; do
        if [[ -x "$candidate" ]] && "$candidate" "$ROOT/scripts/installed.py" $extra; then
            PYTHON="$candidate"
            return
        fi
    done
    if [[ -z "$active" ]]; then
        echo "titan: there is no python3 on the PATH; install Python 3.11 or newer." >&2
        exit 2
    fi
    "$active" "$ROOT/scripts/make_venv.py" $extra || exit 2
    PYTHON="$ROOT/.venv/bin/python"
}
