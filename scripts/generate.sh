#!/usr/bin/env bash
# Translate by a configuration: print the fairseq-generate command that it stands for, and run it.
#
#   scripts/generate.sh configs/NAME.yaml DATA SAVE_DIR [--reference RAW_TEXT] [--output FILE]
#       [--dry-run] [fairseq-generate flags]
#
# Translates the test set with SAVE_DIR/checkpoint_best.pt into SAVE_DIR/generate-test.txt, unless
# the flags --gen-subset, --path and --output say otherwise. With --reference, the raw text of the
# target side, it prints detokenized BLEU with its signature.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage generate "$@"
