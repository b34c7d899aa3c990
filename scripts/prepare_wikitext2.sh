#!/usr/bin/env bash
# WikiText-2; downloaded if not named. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-wikitext2 "$@"
