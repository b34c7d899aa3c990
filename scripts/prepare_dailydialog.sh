#!/usr/bin/env bash
# DailyDialog, pairs of adjacent utterances, to data for fairseq-train; downloaded if not named.
#   scripts/prepare_dailydialog.sh [ijcnlp_dailydialog.zip] --dest DIR [--merges N] ...
# All flags, and what goes where: fairseq-kerbs prepare-dailydialog --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-dailydialog "$@"
