#!/usr/bin/env bash
# DailyDialog, pairs of adjacent utterances; downloaded if not named. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-dailydialog "$@"
