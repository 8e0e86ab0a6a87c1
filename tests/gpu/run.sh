#!/usr/bin/env bash
# All that needs an NVIDIA GPU, in under five minutes on a machine with one (driver for CUDA 12, Python 3.11 or newer):
# makes an environment in a folder of its own, installs the package with what these tests need, and runs them. A machine
# without a GPU is a failure here, not a skip.
#
#   tests/gpu/run.sh [PYTHON]      default: python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nvidia-smi --list-gpus
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check '.[gpu]' 'pytest>=8.4' 'hypothesis>=6.120'
export RECHUNK_EXEC_REQUIRE=gpu
timeout --kill-after=10 240 "$work/venv/bin/python" -m pytest -m gpu -p no:cacheprovider -s tests/gpu
