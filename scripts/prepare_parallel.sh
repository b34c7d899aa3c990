#!/usr/bin/env bash
# Raw parallel text to data for fairseq-train: Moses tokenization, length filter, BPE, binarization.
#
#   scripts/prepare_parallel.sh --train PREFIX --valid PREFIX --test PREFIX[,PREFIX...] \
#       --source-lang de --target-lang en --dest DIR [--bpe joint|separate|none] [--merges N]
#       [--joined-dictionary] [--vocabulary-threshold N] [--max-words N] [--lowercase]
#       [--escape] [--source-moses LANG] [--target-moses LANG] [--workers N]
#
# PREFIX stands for two files, PREFIX.de and PREFIX.en here. The data end up in DIR/bin. Run it again
# after an interruption: finished steps are not repeated.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare "$@"
