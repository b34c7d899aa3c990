#!/usr/bin/env bash
# Raw parallel text to data for fairseq-train: Moses tokenization, length filter, BPE, binarization.
#
#   scripts/prepare_parallel.sh --train PREFIX --valid PREFIX --test PREFIX[,PREFIX...] \
#       --source-lang de --target-lang en --dest DIR [--bpe joint|separate|none] [--merges N] ...
#
# Data go to DIR/bin; finished steps are not repeated. All flags: fairseq-kerbs prepare --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare "$@"
