#!/usr/bin/env bash
# DailyDialog to data for fairseq-train: pairs of adjacent utterances without the training pairs that
# validation or test have too, apostrophes made uniform; then Moses tokenization, length filter,
# joint BPE and binarization with one vocabulary.
#
#   scripts/prepare_dailydialog.sh [SOURCE] --dest DIR [--merges N] [--lowercase] [--max-words N]
#       [--workers N]
#
# SOURCE is ijcnlp_dailydialog.zip or a folder with dialogues_{train,validation,test}.txt; without it,
# the archive is downloaded to DIR/download. What was said is called "context", the answer "en". Text
# goes to DIR/raw (DIR/raw/test.en is the reference for BLEU), data to DIR/bin.
# Run it again after an interruption: finished steps are not repeated.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-dailydialog "$@"
