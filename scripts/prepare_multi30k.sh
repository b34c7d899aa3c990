#!/usr/bin/env bash
# Multi30k De-En; downloaded if not named. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-multi30k "$@"
