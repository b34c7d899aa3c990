#!/usr/bin/env bash
# Sentences of the One-Billion-Word benchmark; downloaded if not named. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-lm1b "$@"
