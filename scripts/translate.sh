#!/usr/bin/env bash
# Translate raw text of standard input by a configuration and a trained model, to standard output.
#
#   scripts/translate.sh configs/NAME.yaml DATA SAVE_DIR [--print-senses] [fairseq-generate flags]
#       < raw > translated
#
# DATA is the folder `bin` that prepare_parallel.sh made: text is tokenized, divided and joined again
# as it was there. Details: fairseq-kerbs translate --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage translate "$@"
