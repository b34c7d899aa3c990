#!/usr/bin/env bash
# IWSLT'16 De-En, release 2016-01 or a folder, to data for fairseq-train; downloaded if not named.
#   scripts/prepare_iwslt16.sh [2016-01.tgz] --dest DIR [--valid SET] [--test SET[,SET...]] ...
# All flags, and what goes where: fairseq-kerbs prepare-iwslt16 --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-iwslt16 "$@"
