#!/usr/bin/env bash
# Translate raw text from standard input by a configuration. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs translate "$@"
