#!/usr/bin/env bash
# IWSLT'16 De-En to data for fairseq-train; downloaded if not named. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs prepare-iwslt16 "$@"
