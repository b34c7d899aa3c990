#!/usr/bin/env bash
# Raw parallel text to data for fairseq-train: Moses, length filter, BPE, binarization. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare "$@"
