#!/usr/bin/env bash
# Reproduce the papers' tables: prepare data, train what is missing, score, and write reports.
#
#   scripts/reproduce_tables.sh [--table 1|2|3|4|5|6|gao1|gao3|layers|all] [--scale full|small]
#       [--corpora DIR] [--work DIR] [--results DIR] [--jobs N] [--only PATTERN] [--redo] [--dry-run] [--report-only]
#
# DIR of --corpora holds the raw corpora: iwslt16, dailydialog, lm1b, multi30k-de-en, wikitext-2, …
# (configs/tables/data.yaml says what each is). Interrupted, it goes on where it stopped; a failed run
# is reported and the others go on. --dry-run prints every command with planned minutes. Reports go
# to results/tables, checkpoints and logs to runs/tables.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
[ $# -gt 0 ] || kerbs tables
kerbs_or_usage tables "$@"
