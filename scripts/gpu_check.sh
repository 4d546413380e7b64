#!/usr/bin/env bash
# ./scripts/gpu_check.sh [options of gpu_check.py]: one short run on a machine with a CUDA GPU, from the source tree.
#
# Installs nothing: $PYTHON, else the active python3, with torch 2.11 or newer, numpy, pydantic and tokenizers.
set -euo pipefail
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/gpu_check.py" "$@"
