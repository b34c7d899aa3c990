#!/usr/bin/env bash
# Tokenized text to data for fairseq-train --task language_modeling: checks, vocabulary, binarization.
#
#   scripts/prepare_lm.sh FOLDER --dest DIR [--words N] [--workers N]
#   scripts/prepare_lm.sh --train FILE --valid FILE --test FILE --dest DIR [--words N] [--workers N]
#
# Text has one sentence or paragraph a line, with spaces between words; FOLDER holds one file each with
# train, valid (or dev) and test in its name, such as wiki.train.tokens. The data end up in DIR/bin.
# Run it again after an interruption: finished steps are not repeated.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-lm "$@"
