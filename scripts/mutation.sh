#!/usr/bin/env bash
# Mutation check: change kernels, likelihood, reallocation and composition in one place at a time
# and see whether a test notices. About 1,600 mutants, half an hour of one core.
#
# usage: scripts/mutation.sh [--own] [--again] [--report] [MODULE ...]
#
# mutmut and its libraries go to .venv-mutation/, which sees the packages of .venv and leaves it as
# it is. Verdicts and report: results/mutation/. --own runs a module's own tests only,
# --again takes what lived on without an argument, --report writes the report and runs nothing.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

case "${1:-}" in
  -h | --help) usage; exit ;;
esac

say() { printf '[mutation] %s\n' "$*"; }

find_python
environment=$CHECKOUT/.venv-mutation
if [ ! -f "$environment/ready" ]; then
  say "making $environment"
  "$PYTHON" -m venv "$environment"
  packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$environment/bin/python" -c "import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path('purelib'), 'project.pth').write_text(sys.argv[1])" "$packages"
  "$environment/bin/python" -m pip install --quiet "mutmut==3.8.1"
  touch "$environment/ready"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
cd -- "$CHECKOUT"
say "python -m scripts.mutation $*"
exec nice "$environment/bin/python" -m scripts.mutation "$@"
