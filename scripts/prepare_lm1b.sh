#!/usr/bin/env bash
# Sentences of the One-Billion-Word benchmark to data for language models; downloaded if not named.
#   scripts/prepare_lm1b.sh [ARCHIVE] --dest DIR [--train N] [--valid N] [--test N] [--seed S] ...
# All flags, and what goes where: fairseq-kerbs prepare-lm1b --help

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-lm1b "$@"
