#!/usr/bin/env bash
# Tokenized text to data for fairseq-train --task language_modeling: checks, vocabulary, binarization.
#
#   scripts/prepare_lm.sh FOLDER --dest DIR [--words N] [--workers N]
#
# Data go to DIR/bin; finished steps are not repeated. All flags: fairseq-kerbs prepare-lm --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-lm "$@"
