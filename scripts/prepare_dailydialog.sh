#!/usr/bin/env bash
# DailyDialog to data for fairseq-train: pairs of adjacent utterances.
#
#   scripts/prepare_dailydialog.sh [ijcnlp_dailydialog.zip] --dest DIR [--merges N] ...
#
# Without a source it is downloaded to DIR/download. Text goes to DIR/raw, data to DIR/bin; finished
# steps are not repeated. All flags: fairseq-kerbs prepare-dailydialog --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-dailydialog "$@"
