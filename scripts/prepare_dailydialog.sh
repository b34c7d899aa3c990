#!/usr/bin/env bash
# DailyDialog, pairs of adjacent utterances; downloaded if not named. Flags: --help
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs prepare-dailydialog "$@"
