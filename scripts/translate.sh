#!/usr/bin/env bash
# Translate raw text by a configuration: the same way as the folder of DATA was prepared.
#
#   scripts/translate.sh configs/NAME.yaml DATA SAVE_DIR [--print-senses] [fairseq-generate flags] \
#       < raw > translated                     All about it: fairseq-kerbs translate --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage translate "$@"
