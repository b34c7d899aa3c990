#!/usr/bin/env bash
# Translate the test set by a configuration. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs generate "$@"
