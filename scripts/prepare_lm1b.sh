#!/usr/bin/env bash
# The One-Billion-Word benchmark to data for fairseq-train --task language_modeling: draws sentences
# with a seed, then vocabulary and binarization.
#
#   scripts/prepare_lm1b.sh [SOURCE] --dest DIR [--train N] [--valid N] [--test N] [--seed S]
#       [--words N] [--workers N]
#
# SOURCE is 1-billion-word-language-modeling-benchmark-r13output.tar.gz, that archive unpacked, or a
# folder of tokenized text with train, dev or test in the file names (without a training file all
# sentences come from one pool); without it, the archive (1.8 GB) is downloaded to DIR/download.
# 300,000 / 10,000 / 30,000 sentences unless told otherwise. Text goes to DIR/raw, data to DIR/bin.
# Run it again after an interruption: finished steps are not repeated.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-lm1b "$@"
