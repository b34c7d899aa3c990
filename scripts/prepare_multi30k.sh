#!/usr/bin/env bash
# Multi30k German-English to data for fairseq-train; downloaded if no folder of it is named.
#   scripts/prepare_multi30k.sh [FOLDER] --dest DIR [--merges N] ...
# All flags, and what goes where: fairseq-kerbs prepare-multi30k --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-multi30k "$@"
