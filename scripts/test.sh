#!/usr/bin/env bash
# Run every check of the project from a fresh checkout: install, ruff, mypy, pytest with the slow
# tests. Arguments go to pytest: scripts/test.sh -m "not slow" -k kernels
# As many processes run tests as there are cores; -n 0 for one that a debugger can enter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '[test] %s\n' "$*"; }

bash scripts/install.sh --extras dev
# The tests' tensors are tiny and several of them start processes of their own.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
say "ruff check"
.venv/bin/ruff check .
say "mypy"
.venv/bin/mypy
say "pytest $*"
exec .venv/bin/python -m pytest -n auto --dist loadfile "$@"
