#!/usr/bin/env bash
# Sentences of the One-Billion-Word benchmark to data for fairseq-train --task language_modeling.
#
#   scripts/prepare_lm1b.sh [ARCHIVE] --dest DIR [--train N] [--valid N] [--test N] [--seed S] ...
#
# Without a source it is downloaded (1.8 GB) to DIR/download. Text goes to DIR/raw, data to DIR/bin;
# finished steps are not repeated. All flags: fairseq-kerbs prepare-lm1b --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-lm1b "$@"
