#!/usr/bin/env bash
# IWSLT'16 De-En to data for fairseq-train: reads and checks the WIT3 release 2016-01, then Moses
# tokenization, length filter, BPE and binarization.
#
#   scripts/prepare_iwslt16.sh [SOURCE] --dest DIR [--valid SET] [--test SET[,SET...]] [--merges N]
#       [--joined-dictionary] [--max-words N] [--workers N]
#
# SOURCE is 2016-01.tgz, the de-en.tgz in it, that archive unpacked, or a folder of plain text with
# train*.{de,en} and IWSLT16.TED.SET.de-en.{de,en}; without it, 2016-01.tgz is downloaded to
# DIR/download. SET is dev2010 or tst2010 ... tst2014; validation is tst2013 and test tst2014 unless
# named. Text goes to DIR/raw (DIR/raw/test.en is the reference for BLEU), data to DIR/bin.
# Run it again after an interruption: finished steps are not repeated.

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
kerbs_or_usage prepare-iwslt16 "$@"
