#!/usr/bin/env bash
# Tokenized text to data for language models. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-lm "$@"
