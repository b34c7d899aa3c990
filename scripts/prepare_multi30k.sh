#!/usr/bin/env bash
# Multi30k German-English to data for fairseq-train; without a folder of it, it is downloaded.
#   scripts/prepare_multi30k.sh [FOLDER] --dest DIR [--merges N] ...
# All flags: fairseq-kerbs prepare-multi30k --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-multi30k "$@"
