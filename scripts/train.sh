#!/usr/bin/env bash
# Train by a configuration: print the fairseq-train command that it stands for, and run it.
#
#   scripts/train.sh configs/NAME.yaml DATA SAVE_DIR [--dry-run] [fairseq-train flags]
#
# DATA is the folder that fairseq-preprocess wrote. Flags given here replace those of the file;
# --dry-run only prints the command.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage train "$@"
