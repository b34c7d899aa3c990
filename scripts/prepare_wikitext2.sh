#!/usr/bin/env bash
# WikiText-2 to data for language models; downloaded if neither archive nor folder is named.
#   scripts/prepare_wikitext2.sh [wikitext-2-v1.zip] --dest DIR [--words N] ...
# All flags, and what goes where: fairseq-kerbs prepare-wikitext2 --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-wikitext2 "$@"
