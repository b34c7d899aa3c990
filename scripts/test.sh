#!/usr/bin/env bash
# Run every check of the project from a fresh checkout: install, ruff, mypy, lint-imports, pytest with
# the slow tests. Arguments go to pytest: scripts/test.sh -m "not slow" -k kernels
# With --coverage as the first one, the lines of the package that no test runs are listed at the end.
# As many processes run tests as there are cores; -n 0 for one that a debugger can enter.

source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
case ${1:-} in
  -h | --help) usage; exit ;;
  --coverage) shift; set -- --cov --cov-report=term-missing:skip-covered "$@" ;;
esac
cd "$CHECKOUT"
bash scripts/install.sh --extras dev
# The tests' tensors are tiny and several of them start processes of their own.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
set -x
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports --no-logo
exec .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
