#!/usr/bin/env bash
# IWSLT'16 De-En, of the WIT3 release 2016-01 or a folder, to data for fairseq-train.
#
#   scripts/prepare_iwslt16.sh [2016-01.tgz] --dest DIR [--valid SET] [--test SET[,SET...]] ...
#
# Without a source it is downloaded to DIR/download. Text goes to DIR/raw, data to DIR/bin; finished
# steps are not repeated. All flags: fairseq-kerbs prepare-iwslt16 --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-iwslt16 "$@"
