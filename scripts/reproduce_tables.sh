#!/usr/bin/env bash
# Reproduce the papers' tables with Snakemake: see scripts/reproduce_tables.sh --help.

source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
find_python
export CHECKOUT  # the profile of SLURM names files in it
export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -P -m scripts.tables.reproduce "$@"
