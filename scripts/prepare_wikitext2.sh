#!/usr/bin/env bash
# WikiText-2 to data for language models; without the archive or its folder, it is downloaded.
#   scripts/prepare_wikitext2.sh [wikitext-2-v1.zip] --dest DIR [--words N] ...
# All flags: fairseq-kerbs prepare-wikitext2 --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-wikitext2 "$@"
