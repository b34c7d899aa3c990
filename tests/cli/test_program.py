"""Exit status and output of the program: wrong input, signals, pipes and missing packages.

The table is of wrong input to every command: status 2, one sentence with the flag or file, nothing
written.
"""

import compileall
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_kerbs import __version__
from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.cli.commands import root
from fairseq_kerbs.evaluation import bleu
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from tests.helpers import tiny_checkpoint
from tests.helpers.cli import Capsys, Patch
from tests.helpers.commands import ROOT, run_program

FILES = {
    "two": b"one two\nthree .\n",
    "one": b"a b\n",
    "pieces": b"a@b\nun@@ done\n",
    "empty": b"",
    "blank": b"\n\n",
    "bad.de": b"fine\nbad \xff\n",
    "none.de": b"",
    "none.en": b"",
    "spaces.de": b" \n\t\n",
    "spaces.en": b"a b\n\n",
    "mac.de": b"a\rb\rc\r",
    "mac.en": b"a b c\n",
    "marked": b"<s> a b </s>\na <pad> b\n",
    "unequal.de": b"a\nb\n",
    "unequal.en": b"a\n",
    "cut.tgz": b"\x1f\x8b\x08",
    **{f"dialogs/dialogues_{part}.txt": b"a b\n" for part in ("train", "validation", "test")},
    "good.yaml": b"train:\n  arch: lstm_kerbs\n",
    "whole.yaml": b"""
train:
  arch: lstm_kerbs
  hidden-size: 6
  embed-dim: 4
  criterion: kerbs_cross_entropy
  optimizer: adam
  adam-betas: (0.9, 0.98)
  lr: 0.01
  lr-scheduler: polynomial_decay
  total-num-update: 25
  max-tokens: 400
  cpu: true
  num-workers: 0
generate:
  beam: 2
  remove-bpe: true
  cpu: true
""",
    "no_text.yaml": b"",
    "no_batch.yaml": b"train: {arch: lstm_kerbs, optimizer: adam, cpu: true}\n",
    "no_optimizer.yaml": b"train: {arch: lstm_kerbs, max-tokens: 400, cpu: true}\n",
    "no_arch.yaml": b"train: {optimizer: adam, max-tokens: 400, cpu: true}\n",
    "damaged.pt": b"PK damaged",
    "extends.yaml": b"extends: whole.yaml\n",
    "subwords.yaml": b"generate: {beam: 2, cpu: true}\n",
    "chinese.de": b"eins zwei\n",
    "chinese.zh_CN": b"a b\n",
    "key.yaml": b"trian:\n  arch: lstm_kerbs\n",
    "code.yaml": b"train: !!python/object/apply:os.system ['touch ran']\n",
    "late.yaml": b"placement: {at: 2, total: 3}",
    "half.yaml": b"placement: {at: half, total: 3}",
    "number.yaml": b"placement: 0.2",
    "many.yaml": b"placement: {at: 0.2, total: 5}",
    "flag.yaml": b"placement: {at: 0.2, total: 3, train: {--lr: 1}}",
    "recipe.yaml": b"extends: whole.yaml\nplacement: {at: 0.2, total: 3}\n",
    "placement.yaml": b"placement: {at: 0.2, total: 3}",
    "rate.yaml": b"extends: whole.yaml\nplacement: {at: 0.2, total: 3, train: {lr: -1}}\n",
    "rates.yaml": b"extends: whole.yaml\nplacement: {at: 0.2, total: 3, train: {lr: [1, 2]}}\n",
    "typo.yaml": b"extends: whole.yaml\nplacement: {at: 0.2, total: 3, train: {max-token: 9}}\n",
    "wider.yaml": b"extends: whole.yaml\nplacement: {at: 0.2, total: 3, train: {hidden-size: 9}}\n",
    "list.yaml": b"extends: whole.yaml\ntrain: {lr: [1e-3, 1e-4]}\n",
    "true.yaml": b"extends: whole.yaml\ntrain: {seed: true}\n",
    "slip.yaml": b"extends: list.yaml\ngenerate: {bean: 2}\n",
    "text.yaml": b"extends: whole.yaml\ntrain: {lr: x}\n",
    "over.yaml": b"extends: text.yaml\n",
    "equals.yaml": b"train: {lr=3: x}\n",
    "lm.yaml": b"train: {task: language_modeling}\ngenerate: {cpu: true}\n",
    "later.yaml": b"placement: {at: 0.2, total: 3, train: {arch: x, output-layer: softmax}}",
}
PREPARE = "prepare --source-lang de --target-lang en --dest {out}/dest --workers 1 --bpe none"
TEXT = "--train {work}/text/train --valid {work}/text/valid --test {work}/text/test"
THRESHOLD = f"{PREPARE} {TEXT} --vocabulary-threshold 5"
LANGUAGE = "prepare-lm --valid {work}/two --test {work}/two --dest {out}/dest --workers 1"
SENSES, MODEL = "senses --data {work}/bin", "{work}/model.pt"
SAVE = "{work}/bin {out}/save --max-update 25"
RECIPE = f"train {{work}}/placement.yaml {SAVE}"
CONVERT = "convert {work}/softmax.pt -o {out}/k.pt --data {work}/bin"
WHOLE = f"train {{work}}/whole.yaml {SAVE}"
GENERATE = "generate {work}/whole.yaml {work}/bin {work}/trained --output {out}/o"
TRANSLATE = "translate {work}/whole.yaml {work}/bin {work}/trained"
MORE = "train {work}/whole.yaml {work}/more {out}/save --max-update 2"
BEHIND = "train {work}/whole.yaml {work}/bin:{work}/more {out}/save --max-update 2"
REVERSED = "generate {work}/whole.yaml {work}/bin {work}/reversed"
SCORE = "score --hypotheses {work}/two --reference"
EXPORT = "human-eval export --source {work}/two --system a={work}/two --sheets {out}/sheets"
ITEM = f"{EXPORT} --key {{out}}/key.json --items 1"
TRANSLATIONS = "gold-translations --text {work}/two -o {out}/gold --other {work}"
EXAMPLES = "examples --source {work}/two --system a={work}/two"
BEST = "--system c={work}/two --choose best --reference {work}/two"

MISUSES = [
    ("toy {out}/file", "file"),
    (f"{PREPARE} {TEXT} --train {{work}}/unequal", "unequal.de"),
    (f"{PREPARE} {TEXT} --max-word 9", "--max-word"),
    (f"{PREPARE} {TEXT} --target-lang zh-CN", "--target-moses zh"),
    (f"{LANGUAGE} --train {{work}}/empty", "empty"),
    (f"{LANGUAGE} --train {{work}}/two --max-words -1", "--max-words"),
    (f"{LANGUAGE} --train {{work}}/bad.de", "bad.de, line 2"),
    (f"{PREPARE} {TEXT} --valid {{work}}/none", "none.de and {work}/none.en are empty"),
    (f"{PREPARE} {TEXT} --test {{work}}/absent", "absent.de: no such file"),
    (f"{PREPARE} {TEXT} --max-words 1", "0 have an empty side, and 40 are longer than 1 words"),
    (f"{PREPARE} {TEXT} --train {{work}}/spaces", "2 have an empty side, and 0 are longer"),
    (f"{PREPARE} {TEXT} --train {{work}}/mac", "mac.de is a single line with carriage returns"),
    (f"{PREPARE} {TEXT} --test {{work}}/text/test,", "--test has an empty part; give prefixes"),
    (f"{PREPARE} {TEXT} --target-moses klingon", "klingon is no code of a language, such as en"),
    (f"{LANGUAGE} --train {{work}}/marked", "marked, line 2: fairseq reads <pad> as a sign"),
    (f"{PREPARE} {TEXT} --train {{work}}/text/train.de", "give --train {work}/text/train"),
    (f"{PREPARE} {TEXT} --test {{work}}/text/test.en", "give --test {work}/text/test"),
    (f"{PREPARE} {TEXT} --target-lang de", "--source-lang and --target-lang must differ"),
    ("prepare-iwslt16 --dest {out}/dest --valid tst2015", "--valid and --test must name different"),
    ("prepare-iwslt16 --dest {out}/dest --test tst2014,", "--valid and --test must name different"),
    ("prepare-iwslt16 --dest {out}/dest --test tst2013", "--valid and --test must name different"),
    ("prepare-dailydialog {work}/dialogs --dest {out}/dest", "train dialogues has 1 lines"),
    ("prepare-lm1b {work}/dialogs --dest {out}/dest --train 5", "--train 5"),
    ("prepare-multi30k {work}/text --dest {out}/dest", "text"),
    ("prepare-wikitext2 {work}/cut.tgz --dest {out}/dest", "cut.tgz"),
    ("train {work}/key.yaml {work}/bin {out}/save", "key.yaml: unknown key 'trian'"),
    ("train {work}/code.yaml {work}/bin {out}/save", "code.yaml"),
    ("train {work}/good.yaml {work}/bin:{out}/no {out}/save", "no does not exist"),
    ("train {work}/good.yaml {work}/bin --lr 1", "missing argument 'SAVE_DIR'"),
    (f"train {{work}}/late.yaml {SAVE}", "at must be between 0 and 1"),
    (f"train {{work}}/half.yaml {SAVE}", "placement must have two numbers"),
    (f"train {{work}}/number.yaml {SAVE}", "placement must have two numbers"),
    (f"train {{work}}/flag.yaml {SAVE}", "write the flag without leading dashes"),
    (f"train {{work}}/many.yaml {SAVE}", "total is 5.0, more than --max-senses 4"),
    (
        f"{RECIPE} --total-senses 2 --continue-once x --max-epoch 3 --patience 3 --reset-optimizer",
        "error: --continue-once, --max-epoch, --patience, --reset-optimizer, --total-senses does",
    ),
    (f"{RECIPE} --kernel lin --no-save", "--no-save, --kernel lin does not go"),
    (f"train {{work}}/later.yaml {SAVE}", "--output-layer, --arch (placement: train) does not"),
    (f"train {{work}}/rate.yaml {SAVE}", "placement: train: --lr is -1.0, but must be within"),
    (f"train {{work}}/rate.yaml {SAVE}", "(--lr is in {work}/rate.yaml)"),
    (f"train {{work}}/rates.yaml {SAVE}", "placement: train: the configuration has 'lr: [1, 2]'"),
    (f"train {{work}}/over.yaml {SAVE}", "invalid value: 'x' (--lr is in {work}/text.yaml)"),
    (f"train {{work}}/over.yaml {SAVE} --lr y", "argument --lr: invalid value: 'y'"),
    ("generate {work}/slip.yaml {work}/bin {out}/save", "(--bean is in {work}/slip.yaml)"),
    ("translate {work}/slip.yaml {work}/bin {out}/save", "(--bean is in {work}/slip.yaml)"),
    (f"train {{work}}/typo.yaml {SAVE}", "placement: train: unrecognized arguments: --max-token 9"),
    (f"train {{work}}/wider.yaml {SAVE}", "--hidden-size (placement: train) does not"),
    (f"train {{work}}/list.yaml {SAVE}", "--lr has one value; write 'lr: 1e-3,1e-4'"),
    (f"train {{work}}/true.yaml {SAVE}", "has 'seed: true', but --seed is no switch; give it a"),
    (f"train {{work}}/equals.yaml {SAVE}", "equals.yaml: train: 'lr=3' is no name of a flag"),
    (
        "train {work}/whole.yaml {work}/bin:{work}/turned {out}/save",
        "dict.en.txt is not the dict",
    ),
    ("train {work}/whole.yaml {work}/bin:{work}/no_training {out}/save", "has no such split"),
    ("train {work}/whole.yaml {work}/bin: {out}/save", "has an empty name; write folders"),
    ("train {work}/whole.yaml {work}/lm {out}/save", "is text of one language (it has dict.txt)"),
    ("generate {work}/whole.yaml {work}/lm {work}/trained --output {out}/o", "is text of one lang"),
    ("translate {work}/whole.yaml {work}/lm {work}/trained", "is text of one language"),
    (f"{WHOLE} --task language_modeling --arch lstm_lm_kerbs", "is text of two languages (it has"),
    (f"{WHOLE} --best-checkpoint-metric blu", "is not logged; give one of loss, nll_loss, ppl"),
    (f"{WHOLE} --best-checkpoint-metric accuracy", "is not logged; add --report-accuracy"),
    (f"{WHOLE} --adam-betas (2,3)", "two numbers within [0, 1); write '(0.9, 0.98)'"),
    (f"{WHOLE} --tensorboard-logdir ${{{{x}}}}/y", "which fairseq interprets; write it out"),
    (f"{WHOLE} --train-subset train,valid", "fairseq trains on one split; give one"),
    (f"{WHOLE} --restore-file {{work}}/foreign.pt", "foreign.pt holds no model of fairseq-train"),
    (f"{GENERATE} --path {{work}}/foreign.pt", "foreign.pt holds no model of fairseq-train"),
    ("train {work}/whole.yaml {work}/bin {work}/strange", "checkpoint_last.pt holds no model of"),
    (f"{TRANSLATE} --nbest 2", "--nbest does not go with translate"),
    ("translate {work}/lm.yaml {work}/bin {work}/trained", "--task language_modeling does not tr"),
    (f"{RECIPE} --max-update x", "argument --max-update: invalid int value: 'x'"),
    (f"{RECIPE} --max-update=0", "needs --max-update"),
    (f"{RECIPE} --max-senses 2", "more than --max-senses 2"),
    (f"{RECIPE} --lr-scheduler cosine", "take polynomial_decay"),
    ("train {work}/recipe.yaml {work}/few {out}/save --max-update 25", "text occurs 40 times"),
    ("train {work}/recipe.yaml {work}/bin {work}/begun --max-update 5", "--max-update 10"),
    ("generate {work}/good.yaml {work}/bin {out}/save --reference {out}/no", "no: no such file"),
    ("generate {work}/good.yaml {work}/bin {out}/save", "--path"),
    ("generate {work}/good.yaml {work}/bin {out}/a:b", "SAVE_DIR"),
    ("generate {work}/good.yaml {work}/bin {out}/save --results-path=x", "--results-path leaves"),
    ("translate toy {work}/text {out}/save", "text"),
    (f"print-senses {MODEL} {{work}}/two --data {{work}}/bin", "two has no hypotheses"),
    (THRESHOLD, "--vocabulary-threshold is for subwords, which --bpe none does not make; leave"),
    ("architectures --sizes", "--sizes"),
    ("self-check --slow", "--slow"),
    ("user-dir {work}", "got unexpected extra argument"),
    ("plot kernels -o {out}/figure.jpg", "figure.jpg"),
    ("detokenize {work}/bad.de --lang en", "bad.de, line 2"),
    ("score --hypotheses {work}/two --reference {work}/one", "two has 2 lines"),
    ("score --hypotheses {work}/two --reference {work}/two --tokenize xx", "--tokenize xx"),
    ("score --hypotheses {work}/two {work}/two --reference {work}/two", "--hypotheses"),
    ("score --hypotheses {work}/two --reference {work}/two --lowercase --both-cases", "not go"),
    (f"{EXAMPLES} --choose best", "needs --reference"),
    (EXAMPLES, "--choose differing draws lines where systems differ: give two --system or more"),
    (f"{EXAMPLES} --system c={{work}}/one", "has 1"),
    (f"{EXAMPLES} --reference {{work}}/one", "--source has 2 lines but --reference has 1"),
    (f"{EXAMPLES} {BEST} --baseline x", "--baseline x is none of"),
    (f"{EXAMPLES} {BEST} --baseline c", "--baseline c is none of"),
    (f"{EXPORT} --key {{out}}/key.json --items 3", "--items is 3, but only 2 lines"),
    (f"{EXPORT} --key {{out}}/sheets/key.json --items 1", "lies in --sheets; put it where"),
    (f"{ITEM} --system b={{work}}/one", "2 lines but --system b has 1"),
    (f"{ITEM} --system b={{work}}/pieces", "pieces, line 2 has subword marks (@@)"),
    (f"{ITEM} --system a=f", "--system a is there twice"),
    (f"{ITEM} --system b", "write NAME=FILE"),
    # the sheets could be written, but would be of no use without their key
    (f"{EXPORT} --key {{out}}/file/key.json --items 1", "file cannot be"),
    ("human-eval score --key {work}/two {work}/two", "--key"),
    (f"{SENSES} {{out}}/absent.pt", "absent.pt"),
    (f"{SENSES} {{work}}/senses.pt", "--total-senses"),
    (f"{SENSES} {{work}}/negative.pt", "inventory.usage"),
    (f"{SENSES} {MODEL} --split tset", "--split"),
    (f"{SENSES} {MODEL} --word the </s>", "--word: </s> is a special symbol, whose senses have no"),
    (f"senses {MODEL} --data {{work}}/no_training", "not found: train"),
    (f"senses {MODEL} --data {{work}}/no_training --split test --table {{out}}/t", "no training"),
    (f"senses {MODEL} --data {{work}}/one_side --split test", "test.de-en.en: a side is missing"),
    (f"senses {MODEL} --gold {{work}}/two", "give --data BIN"),
    (f"{SENSES} {MODEL} --train-data {{work}}/bin", "--train-data"),
    (f"{SENSES} {MODEL} --gold {{work}}/two", "two, line 1"),
    ("senses {work}/moved.pt", "give --data BIN or --dict FILE"),
    ("senses {work}/moved.pt --dict {work}/key.yaml", "no dictionary of fairseq"),
    (f"{SENSES} {{work}}/stock.pt", "no model of fairseq_kerbs"),
    (f"{SENSES} {MODEL} --word the nosuch", "nosuch"),
    (f"{SENSES} {MODEL} --word the THE", "--word: THE: not in the dictionary; did you mean the?"),
    ("senses {work}/fairseq.pt --data {work}/bin", "fairseq-kerbs convert {work}/fairseq.pt -o"),
    ("senses {work}/converted.pt --data {work}/turned", "of other words or in another order"),
    ("senses {work}/converted.pt --dict {work}/turned/dict.en.txt", "in the order that the"),
    (
        "plot theta {work}/converted.pt --data {work}/bin --word the -o {out}/f.png",
        "converted.pt is 0, as 'fairseq-kerbs convert' sets it",
    ),
    (f"senses {MODEL} --dict {{work}}/turned/dict.en.txt", "dict.en.txt"),
    (f"{SENSES} {MODEL} --json {{out}}/file/r", "file cannot be"),
    (f"{TRANSLATIONS}/one --stemmer none", "has 2 lines"),
    (f"{TRANSLATIONS}/blank --stemmer none", "has no words"),
    (f"{TRANSLATIONS}/two --stemmer none", "--least-count 60"),
    (f"{TRANSLATIONS}/two", "give --stemmer"),
    (f"{TRANSLATIONS}/two --stemmer klingon", "no stemmer for 'klingon'; choose one of"),
    (f"report {MODEL} -o {{out}}/r.pdf", "must end in .html"),
    (f"report {MODEL} -o {{out}}/r.html --log {{work}}/two", "no statistics of senses"),
    (f"plot contexts {MODEL} --data {{work}}/bin --word <pad> -o {{out}}/f.png", "occurs 0 times"),
    (f"plot contexts {MODEL} --word the -o {{out}}/f.png", "--data is missing"),
    ("plot contexts {work}/bin --text {work}/two --word a -o {out}/f.png", "config.json is"),
    (
        f"plot theta {MODEL} --data {{work}}/bin --word the --word a --label x -o {{out}}/f.png",
        "--label has 1 titles for 2 sets",
    ),
    (f"plot frequency {MODEL} --dict {{work}}/uncounted -o {{out}}/f.png", "no counts of words"),
    (f"plot theat {MODEL}", "plot: error: no such command 'theat'; choose one of contexts, theta,"),
    (f"senses {MODEL} --data {{work}}/bin --dict {{work}}/two", "--dict does not go with --data"),
    (f"senses {MODEL} --dict {{work}}/two --data {{work}}/bin", "--data does not go with --dict"),
    (f"senses {MODEL} --json --csv {{out}}/csv", "senses: error: option '--json' requires"),
    (f"neighbours {MODEL} --data {{work}}/text", "--data"),
    (f"neighbours {MODEL} --least 99999", "--least"),
    (f"convert {MODEL} -o {{out}}/k.pt", "is a KerBS model already"),
    (f"convert {MODEL}", "convert: error: missing option '-o' / '--output'"),
    (f"convert {MODEL} -o {{out}}/k.pt --total-senses nan", "--total-senses"),
    (f"convert {MODEL} -o {{out}}/k.pt --contexts 20", "--contexts"),
    (f"{CONVERT} --split nothing", "error: --split: Dataset not found"),
    (f"{CONVERT} --valid-split nothing", "error: --valid-split: Dataset not found"),
    (f"{CONVERT} --split blank", "--split blank: it has no words"),
    (f"{CONVERT} --split empty", "--split empty: it has no words"),
    (f"{CONVERT} --split test", "--split test: no word occurs 40 times"),
    (f"{CONVERT} --memory 1e-9", "--memory 1e-09: 1e-09 GB are not enough"),
    (f"{CONVERT} --gap 0", "'--gap': 0.0 is not in the range 0.001<=x<=100"),
    (f"{CONVERT} --total-senses 9", "--total-senses is 9.0, more than --max-senses"),
    # what fairseq's own parser and checks of it refuse
    ("train {work}/no_text.yaml {work}/bin {out}/save", "no_text.yaml is empty"),
    ("train {work}/whole.yaml {work}/bin {out}/file", "file cannot be used (Not a directory)"),
    ("train {work}/whole.yaml {work}/bin /proc/x", "--save-dir: /proc cannot be used"),
    ("train {work}/whole.yaml {work}/bin ''", "it is empty; name a folder"),
    ("train {work}/no_batch.yaml {work}/bin {out}/save", "give --max-tokens N or --batch-size N"),
    ("train {work}/no_optimizer.yaml {work}/bin {out}/save", "add --optimizer adam"),
    ("train {work}/no_arch.yaml {work}/bin {out}/save", "'fairseq-kerbs architectures' lists"),
    (f"{WHOLE} --max-update -5", "--max-update is -5, but must be within [0, inf)"),
    (f"{WHOLE} --lr -1", "--lr is -1.0, but must be within [0, inf)"),
    (f"{WHOLE} --lr nan", "argument --lr: invalid value: 'nan'"),
    (f"{WHOLE} --clip-norm nan", "--clip-norm is nan"),
    (f"{WHOLE} --max-tokens 0", "--max-tokens is 0, but must be within [1, inf)"),
    (f"{WHOLE} --max-sentences 0", "--batch-size is 0"),
    (f"{WHOLE} --update-freq 0", "--update-freq is 0"),
    (f"{WHOLE} --seed -1", "--seed is -1"),
    (f"{WHOLE} --dropout 2", "--dropout is 2.0"),
    (f"{WHOLE} --patience -2", "--patience is -2"),
    (f"{WHOLE} --label-smoothing 2", "--label-smoothing is 2.0, but must be within [0, 1)"),
    (f"{WHOLE} --total-senses nan", "--total-senses is nan"),
    (f"{WHOLE} --composition-passes -2", "--composition-passes is -2"),
    (f"{WHOLE} --mixture-components 2", "is for --output-layer mos and not read"),
    (f"{WHOLE} --fp16", "--fp16 needs a GPU and does not go with --cpu"),
    (f"{WHOLE} --optimizer-overrides x", "--optimizer-overrides x is no mapping"),
    (f"{WHOLE} --arch lstm_krebs", "--arch lstm_krebs is unknown; did you mean lstm_kerbs?"),
    (
        "train {work}/whole.yaml {work}/bin {out}/save --max-updates 25",
        "did you mean --max-update?",
    ),
    ("train {work}/whole.yaml {work}/hollow {out}/save", "train.de-en.de.bin is empty"),
    ("train {work}/whole.yaml {work}/wordless {out}/save", "dict.en.txt is empty"),
    ("generate {work}/whole.yaml {work}/hollow {work}/trained --gen-subset train", "is empty"),
    (f"{WHOLE} --lr-sched fixed", "--lr-sched fixed; did you mean --lr-scheduler?"),
    (f"{WHOLE} --train-subset nosuch", "--train-subset nosuch: "),
    (f"{WHOLE} --valid-subset valid,nosuch", "--valid-subset nosuch: "),
    (f"{WHOLE} --source-lang fr", "--source-lang fr: "),
    (f"{WHOLE} -s en", "--source-lang en is not read alone"),
    (f"{WHOLE} -s de -t de", "are one language; give two"),
    (f"{WHOLE} --user-dir {{out}}/absent", "absent: there is no such folder"),
    (f"{WHOLE} --restore-file {{out}}/absent.pt", "--restore-file: there is no checkpoint"),
    (f"{WHOLE} --restore-file={{work}}/damaged.pt", "damaged.pt is no whole checkpoint"),
    (f"{WHOLE} --restore-file {{work}}/trained", "is a folder; name a file in it"),
    (f"{WHOLE} --finetune-from-model {{out}}/absent.pt", "--finetune-from-model: there is no"),
    (f"{WHOLE} --finetune-from-model {MODEL} --reset-optimizer", "leave one of them out"),
    (f"{WHOLE} --continue-once {{out}}/absent.pt", "--continue-once: there is no checkpoint"),
    (f"{WHOLE} --tensorboard-logdir {{work}}/two", "--tensorboard-logdir: {work}/two cannot be"),
    (f"{WHOLE} --arch", "argument --arch/-a: expected one argument"),
    (f"{WHOLE} --log-file {{work}}", "--log-file: {work} is a folder; name a file"),
    (f"{WHOLE} --load-alignments", "bin has no train.align.*, which fairseq-preprocess makes"),
    (f"{WHOLE} --user-dir {{work}}/my.plugin", "no folder with a dot in its name; rename it"),
    (
        f"{WHOLE} --user-dir {{work}}/plain_plugin",
        "plain_plugin is imported in place of fairseq_kerbs, which --arch lstm_kerbs is of; write",
    ),
    (
        f"{WHOLE} --arch transformer_kerbs --task denoising",
        "denoising and --arch transformer_kerbs",
    ),
    (f"{WHOLE} --task dummy_mt", "--task dummy_mt reads no data; take another --task"),
    (MORE, "more has further splits for validation (valid1); give"),
    (BEHIND, "more has further splits for validation (valid1); give"),
    (f"{MORE} --valid-subset valid,valid1", "further splits for validation (valid1); give"),
    (f"{GENERATE} --num-shards 2 --shard-id 5", "is none of the --num-shards 2 parts"),
    (REVERSED, "checkpoint_best.pt was trained to translate from en to de, not from de to en"),
    (REVERSED.replace("generate", "translate"), "give --source-lang en --target-lang de"),
    (f"{GENERATE} --beam 0", "--beam is 0, but must be within [1, inf)"),
    (f"{GENERATE} --nbest=0", "--nbest is 0"),
    (f"{GENERATE} --temperature 0", "--temperature is 0.0"),
    (f"{GENERATE} --sampling", "give --beam 1, or --nbest 2"),
    (f"{GENERATE} --beam 4 --diverse-beam-groups 3", "give --beam 3"),
    (f"{GENERATE} --min-len 300", "give --min-len 200"),
    (f"{GENERATE} --replace-unk", "leave it out"),
    (f"{GENERATE} --constraints", "leave it out"),
    (f"{GENERATE} --model-overrides x", "--model-overrides x is no mapping"),
    (f"{GENERATE} --gen-subset nosuch", "--gen-subset nosuch: "),
    (f"{GENERATE} --target-lang fr", "--target-lang fr: "),
    (f"{GENERATE} --path {{work}}/trained", "is a folder; name a file in it"),
    (f"{GENERATE} --path {{work}}/damaged.pt", "damaged.pt is no whole checkpoint"),
    (f"{GENERATE} --lm-path {{out}}/absent.pt", "--lm-path: there is no checkpoint"),
    (f"{GENERATE} --reference {{work}}/two", "--reference {work}/two has 2 lines, but"),
    (f"{GENERATE} --reference {{work}}/blank", "has no text"),
    (f"{GENERATE} --reference {{work}}/pieces", "pieces, line 2 has subword marks (@@); give"),
    ("generate {work}/whole.yaml {work}/bin {work}/trained --output {out}", "is a folder; name a"),
    (f"{TRANSLATE} --gen-subset valid", "--gen-subset does not go with translate"),
    (f"{TRANSLATE} --prefix-size 1", "--prefix-size does not go with translate"),
    (f"{TRANSLATE} --source-lang fr", "--source-lang fr: "),
    (f"{TRANSLATE} --beam=0", "--beam is 0"),
    (f"{TRANSLATE} --quiet", "--quiet leaves no translations"),
    ("score --hypotheses {work}/empty --reference {work}/empty", "empty has no text"),
    (f"{SCORE} {{work}}/blank", "blank has no text to compare with"),
    ("score --hypotheses {work}/blank --reference {work}/two", "blank has no text to score"),
    (f"{SCORE} {{work}}/two --tokenize none2", "choose one of"),
    (f"{SCORE} {{work}}/two --max-ngram-order x", "'x' is not a valid whole number"),
    ("senses {work} --data {work}/bin", "work is a folder; name a file in it, "),
    ("senses {work}/bin", "bin is a folder without checkpoints"),
    ("senses {work}/softmax.pt --data {work}/bin", "fairseq-kerbs convert {work}/softmax.pt -o"),
    ("report {work}/softmax.pt -o {out}/r.html", "fairseq-kerbs convert {work}/softmax.pt -o"),
    (f"senses {MODEL} --split train", "--split is read only with --data"),
    (f"senses {MODEL} --seed 2", "read only with --by-number-of-senses or --table"),
    (f"{SENSES} {MODEL} --word ''", "an empty text is no word"),
    (f"{SENSES} {MODEL} --json {{out}}/r --csv {{out}}/r", "--json and --csv name one file"),
    ("senses ''", "the name is empty; name a file"),
    ("plot theta {work}/lin.pt --data {work}/bin --word the -o {out}/f.png", "has no theta; name"),
    ("convert {work}/softmax.pt -o {out}/file/k.pt", "file cannot be used"),
    ("convert {work}/softmax.pt -o {out}", "is a folder; name a file"),
    ("convert {work}/softmax.pt -o {out}/k.pt --gap 2", "--gap is read only with --data"),
    ("fairseq-train --restore-file {work}/none.pt", "--restore-file: there is no checkpoint"),
    ("fairseq-train --sense-decay=-1e-5", "--sense-decay"),
    ("fairseq-train --store-ema", "--store-ema"),
    ("fairseq-train --mixture-regularization 0.1", "not read by --output-layer kerbs"),
    ("fairseq-train --kernel kerbs_released --sense-bias", "--sense-bias does not go together"),
    ("fairseq-train --continue-once {work}/none.pt", "none.pt: there is no such file"),
    (f"fairseq-train --finetune-from-model {MODEL} --total-senses 2", "--total-senses"),
]
"""``{work}`` is what `work` made, ``{out}`` an empty folder with nothing but ``{out}/file``."""


DRY = "--dry-run"
BELONGING = (
    "gold-translations --text {work}/text/train.en --other {work}/text/train.de -o {out}/gold "
    "--least-share 0.01"
)
MODEL_SENSES = f"{SENSES} {MODEL}"
PARALLEL = f"{PREPARE} {TEXT}"
FOLLOWED = {
    THRESHOLD: PARALLEL,
    "train {work}/whole.yaml {work}/lm {out}/save": PARALLEL,
    "generate {work}/whole.yaml {work}/lm {work}/trained --output {out}/o": PARALLEL,
    "translate {work}/whole.yaml {work}/lm {work}/trained": PARALLEL,
    f"{WHOLE} --task language_modeling --arch lstm_lm_kerbs": f"{LANGUAGE} --train {{work}}/two",
    f"{PREPARE} {TEXT} --max-word 9": f"{PARALLEL} --max-words 9",
    f"{PREPARE} {TEXT} --valid {{work}}/none": PARALLEL,
    f"{PREPARE} {TEXT} --max-words 1": f"{PARALLEL} --max-words 80",
    f"{PREPARE} {TEXT} --train {{work}}/spaces": PARALLEL,
    f"{PREPARE} {TEXT} --test {{work}}/text/test,": PARALLEL,
    f"{GENERATE} --reference {{work}}/pieces": (
        f"{GENERATE} --reference {{work}}/text/test.en {DRY}"
    ),
    f"{PREPARE} {TEXT} --target-lang de": PARALLEL,
    f"{PREPARE} {TEXT} --train {{work}}/text/train.de": PARALLEL,
    f"{PREPARE} {TEXT} --test {{work}}/text/test.en": PARALLEL,
    "train {work}/recipe.yaml {work}/bin {work}/begun --max-update 5": (
        f"train {{work}}/recipe.yaml {{work}}/bin {{work}}/begun --max-update 10 {DRY}"
    ),
    "train {work}/whole.yaml {work}/bin {out}/save --max-updates 25": f"{WHOLE} {DRY}",
    f"{SENSES} {MODEL} --word the THE": f"{SENSES} {MODEL} --word the",
    f"{WHOLE} --user-dir {{work}}/my.plugin": f"{WHOLE} --user-dir {{work}}/my_plugin {DRY}",
    f"{WHOLE} --user-dir {{work}}/plain_plugin": f"{WHOLE} --user-dir {{work}}/my_plugin {DRY}",
    "senses {work}/fairseq.pt --data {work}/bin": (
        "senses {out}/kerbs.pt --data {work}/bin",
        "convert {work}/fairseq.pt -o {out}/kerbs.pt --data {work}/bin",
    ),
    "senses {work}/converted.pt --data {work}/turned": (
        "senses {work}/converted.pt --data {work}/bin"
    ),
    "plot theta {work}/converted.pt --data {work}/bin --word the -o {out}/f.png": (
        "plot usage {work}/converted.pt -o {out}/f.png",
        "plot contexts {work}/converted.pt --data {work}/bin --word the -o {out}/f.png",
    ),
    f"{PREPARE} {TEXT} --target-lang zh-CN": (
        "prepare --source-lang de --target-lang zh_CN --target-moses zh --dest {out}/dest "
        "--workers 1 --bpe none --train {work}/chinese --valid {work}/chinese --test {work}/chinese"
    ),
    "train {work}/good.yaml {work}/bin:{out}/no {out}/save": (
        "train {work}/whole.yaml {out}/dest/bin {out}/save --dry-run",
        PARALLEL,
    ),
    f"train {{work}}/flag.yaml {SAVE}": f"train {{work}}/placement.yaml {SAVE} {DRY}",
    f"train {{work}}/many.yaml {SAVE}": f"train {{work}}/many.yaml {SAVE} --max-senses 5 {DRY}",
    f"train {{work}}/typo.yaml {SAVE}": f"{RECIPE} {DRY}",
    f"train {{work}}/true.yaml {SAVE}": f"{WHOLE} --seed 3 {DRY}",
    "generate {work}/slip.yaml {work}/bin {out}/save": f"{GENERATE} --beam 2 {DRY}",
    "translate {work}/slip.yaml {work}/bin {out}/save": f"{GENERATE} --beam 2 {DRY}",
    f"{WHOLE} --train-subset train,valid": (
        f"{WHOLE} --train-subset train {DRY}",
        f"train {{work}}/whole.yaml {{work}}/bin:{{work}}/bin {{out}}/save {DRY}",
    ),
    f"train {{work}}/list.yaml {SAVE}": f"{WHOLE} --lr 1e-3,1e-4 {DRY}",
    "train {work}/whole.yaml {work}/bin:{work}/turned {out}/save": (
        f"train {{work}}/whole.yaml {{work}}/bin:{{work}}/bin {{out}}/save {DRY}"
    ),
    f"{WHOLE} --best-checkpoint-metric blu": f"{WHOLE} --best-checkpoint-metric ppl --max-update 2",
    f"{WHOLE} --best-checkpoint-metric accuracy": (
        f"{WHOLE} --best-checkpoint-metric accuracy --report-accuracy --max-update 2"
    ),
    f"{WHOLE} --adam-betas (2,3)": f"{WHOLE} --adam-betas '(0.9, 0.98)' {DRY}",
    f"{TRANSLATE} --nbest 2": f"{GENERATE} --nbest 2",
    f"{RECIPE} --max-update=0": f"{RECIPE} --max-update=2 {DRY}",
    f"{RECIPE} --max-senses 2": f"{RECIPE} --max-senses 3 {DRY}",
    f"{RECIPE} --lr-scheduler cosine": f"{RECIPE} --lr-scheduler polynomial_decay {DRY}",
    "generate {work}/good.yaml {work}/bin {out}/save": (
        "generate {work}/whole.yaml {work}/bin {out}/save --path {work}/model.pt"
    ),
    "generate {work}/good.yaml {work}/bin {out}/save --results-path=x": GENERATE,
    f"print-senses {MODEL} {{work}}/two --data {{work}}/bin": (
        f"print-senses {MODEL} {{out}}/o --data {{work}}/bin",
        "generate {work}/subwords.yaml {work}/bin {work}/trained --output {out}/o",
    ),
    "translate toy {work}/text {out}/save": (
        "train {work}/whole.yaml {out}/dest/bin {out}/save --dry-run",
        PARALLEL,
    ),
    "score --hypotheses {work}/two --reference {work}/two --tokenize xx": (
        f"{SCORE} {{work}}/two --tokenize intl"
    ),
    "score --hypotheses {work}/two {work}/two --reference {work}/two": f"{SCORE} {{work}}/two",
    "score --hypotheses {work}/two --reference {work}/two --lowercase --both-cases": (
        f"{SCORE} {{work}}/two --both-cases"
    ),
    f"{EXAMPLES} --choose best": f"{EXAMPLES} {BEST}",
    f"{ITEM} --system b={{work}}/pieces": (
        f"{ITEM} --system b={{out}}/plain",
        "detokenize {work}/pieces --lang en -o {out}/plain",
    ),
    f"{ITEM} --system b": f"{ITEM} --system b={{work}}/two",
    f"{SENSES} {{work}}/senses.pt": f"{SENSES} {MODEL}",
    f"senses {MODEL} --gold {{work}}/two": (
        f"senses {MODEL} --gold {{work}}/text/test.senses.tsv --data {{work}}/bin",
    ),
    f"{SENSES} {MODEL} --train-data {{work}}/bin": (
        f"{SENSES} {MODEL} --train-data {{work}}/bin --gold {{work}}/text/test.senses.tsv",
    ),
    "senses {work}/moved.pt": f"{SENSES} {{work}}/moved.pt",
    f"{SENSES} {MODEL} --split tset": f"{SENSES} {MODEL} --split test",
    f"senses {MODEL} --data {{work}}/no_training": f"{MODEL_SENSES} --split train",
    f"{TRANSLATIONS}/two --stemmer none": f"{BELONGING} --least-count 1 --stemmer none",
    f"{TRANSLATIONS}/two": f"{BELONGING} --least-count 1 --stemmer none",
    f"{TRANSLATIONS}/two --stemmer klingon": f"{BELONGING} --least-count 1 --stemmer german",
    f"report {MODEL} -o {{out}}/r.html --log {{work}}/two": (
        f"report {MODEL} -o {{out}}/r.html --log {{out}}/log",
        f"{WHOLE} --max-update 2 --log-interval 1 --tensorboard-logdir {{out}}/log",
    ),
    f"plot contexts {MODEL} --data {{work}}/bin --word <pad> -o {{out}}/f.png": (
        f"plot contexts {MODEL} --data {{work}}/bin --word the -o {{out}}/f.png"
    ),
    f"plot contexts {MODEL} --word the -o {{out}}/f.png": (
        f"plot contexts {MODEL} --word the -o {{out}}/f.png --data {{work}}/bin"
    ),
    f"plot theta {MODEL} --data {{work}}/bin --word the --word a --label x -o {{out}}/f.png": (
        f"plot theta {MODEL} --data {{work}}/bin --word the --word a --label x y -o {{out}}/f.png"
    ),
    f"plot theat {MODEL}": f"plot theta {MODEL} --data {{work}}/bin --word the -o {{out}}/f.png",
    f"senses {MODEL} --data {{work}}/bin --dict {{work}}/two": MODEL_SENSES,
    f"senses {MODEL} --dict {{work}}/two --data {{work}}/bin": MODEL_SENSES,
    f"neighbours {MODEL} --data {{work}}/text": f"neighbours {MODEL} --data {{work}}/bin --least 3",
    f"neighbours {MODEL} --least 99999": f"neighbours {MODEL} --least 3",
    f"convert {MODEL}": "convert {work}/softmax.pt -o {out}/k.pt",
    f"{CONVERT} --total-senses 9": f"{CONVERT} --split train --total-senses 3 --contexts 40",
    f"{CONVERT} --split nothing": f"{CONVERT} --split train",
    f"{CONVERT} --valid-split nothing": f"{CONVERT} --valid-split valid",
    f"{CONVERT} --split blank": f"{CONVERT} --split train",
    f"{CONVERT} --split empty": f"{CONVERT} --split train",
    f"{CONVERT} --split test": f"{CONVERT} --split train",
    "train {work}/no_batch.yaml {work}/bin {out}/save": (
        f"train {{work}}/no_batch.yaml {SAVE} --max-tokens 400 {DRY}",
        f"train {{work}}/no_batch.yaml {SAVE} --batch-size 9 {DRY}",
    ),
    "train {work}/no_optimizer.yaml {work}/bin {out}/save": (
        f"train {{work}}/no_optimizer.yaml {SAVE} --optimizer adam --max-update 1"
    ),
    "train {work}/no_arch.yaml {work}/bin {out}/save": (
        f"train {{work}}/no_arch.yaml {SAVE} --arch lstm_kerbs {DRY}",
        "architectures",
    ),
    "train {work}/no_text.yaml {work}/bin {out}/save": f"train {{work}}/extends.yaml {SAVE} {DRY}",
    f"{WHOLE} --mixture-components 2": f"{WHOLE} {DRY}",
    f"{WHOLE} --fp16": f"{WHOLE} {DRY}",
    f"{WHOLE} --optimizer-overrides x": (
        f"""{WHOLE} --optimizer-overrides '{{{{"lr": 1}}}}' {DRY}"""
    ),
    f"{WHOLE} --arch lstm_krebs": f"{WHOLE} --arch lstm_kerbs {DRY}",
    f"{WHOLE} --lr-sched fixed": f"{WHOLE} --lr-scheduler fixed {DRY}",
    f"{WHOLE} --train-subset nosuch": f"{WHOLE} --train-subset valid {DRY}",
    f"{WHOLE} --valid-subset valid,nosuch": f"{WHOLE} --valid-subset valid,test {DRY}",
    f"{WHOLE} --source-lang fr": f"{WHOLE} --source-lang de {DRY}",
    f"{WHOLE} -s en": f"{WHOLE} -s en --target-lang de {DRY}",
    f"{WHOLE} --restore-file {{work}}/trained": (
        f"{WHOLE} --restore-file {{work}}/trained/checkpoint_best.pt {DRY}"
    ),
    f"{WHOLE} --finetune-from-model {MODEL} --reset-optimizer": (
        f"{WHOLE} --finetune-from-model {MODEL} {DRY}",
        f"{WHOLE} --reset-optimizer {DRY}",
    ),
    f"{WHOLE} --load-alignments": f"{WHOLE} {DRY}",
    f"{WHOLE} --arch transformer_kerbs --task denoising": (
        f"{WHOLE} --arch transformer_kerbs {DRY}",
        f"{WHOLE} --task denoising {DRY}",
    ),
    f"{WHOLE} --task dummy_mt": f"{WHOLE} --task translation {DRY}",
    BEHIND: f"{BEHIND} --ignore-unused-valid-subsets",
    f"{MORE} --valid-subset valid,valid1": (
        f"{MORE} --valid-subset valid,valid1 --ignore-unused-valid-subsets"
    ),
    MORE: (
        f"{MORE} --ignore-unused-valid-subsets",
        f"{MORE} --combine-valid-subsets --upsample-primary 1",
    ),
    f"{GENERATE} --num-shards 2 --shard-id 5": f"{GENERATE} --num-shards 2 --shard-id 1",
    REVERSED: f"{REVERSED} --source-lang en --target-lang de {DRY}",
    REVERSED.replace("generate", "translate"): (
        f"{REVERSED} --source-lang en --target-lang de {DRY}"
    ),
    f"{GENERATE} --sampling": (
        f"{GENERATE} --sampling --beam 1 {DRY}",
        f"{GENERATE} --sampling --nbest 2",
    ),
    f"{GENERATE} --beam 4 --diverse-beam-groups 3": f"{GENERATE} --beam 3 --diverse-beam-groups 3",
    f"{GENERATE} --min-len 300": f"{GENERATE} --min-len 200 {DRY}",
    f"{GENERATE} --replace-unk": f"{GENERATE} {DRY}",
    f"{GENERATE} --constraints": f"{GENERATE} {DRY}",
    f"{GENERATE} --model-overrides x": f"""{GENERATE} --model-overrides '{{{{"dropout": 0}}}}'""",
    f"{GENERATE} --gen-subset nosuch": f"{GENERATE} --gen-subset valid {DRY}",
    f"{GENERATE} --target-lang fr": f"{GENERATE} --target-lang en {DRY}",
    f"{GENERATE} --path {{work}}/trained": f"{GENERATE} --path {{work}}/trained/checkpoint_best.pt",
    f"{GENERATE} --reference {{work}}/two": f"{GENERATE} --reference {{work}}/text/test.en",
    f"{TRANSLATE} --prefix-size 1": f"{GENERATE} --prefix-size 1",
    f"{TRANSLATE} --quiet": f"{GENERATE} {DRY}",
    f"{SCORE} {{work}}/two --tokenize none2": f"{SCORE} {{work}}/two --tokenize none",
    "senses {work} --data {work}/bin": f"{SENSES} {{work}}/model.pt",
    "senses {work}/softmax.pt --data {work}/bin": (
        "senses {out}/kerbs.pt --data {work}/bin",
        "convert {work}/softmax.pt -o {out}/kerbs.pt --data {work}/bin",
    ),
    "report {work}/softmax.pt -o {out}/r.html": (
        "report {out}/kerbs.pt -o {out}/r.html --data {work}/bin",
        "convert {work}/softmax.pt -o {out}/kerbs.pt --data {work}/bin",
    ),
    f"senses {MODEL} --split train": f"senses {MODEL} --split train --data {{work}}/bin",
    f"senses {MODEL} --seed 2": (
        f"senses {MODEL} --seed 2 --by-number-of-senses",
        f"senses {MODEL} --seed 2 --table {{out}}/table.md",
    ),
    "plot theta {work}/lin.pt --data {work}/bin --word the -o {out}/f.png": (
        f"plot theta {MODEL} --data {{work}}/bin --word the -o {{out}}/f.png",
        "plot usage {work}/lin.pt -o {out}/f.png",
        "plot contexts {work}/lin.pt --data {work}/bin --word the -o {out}/f.png",
    ),
    "convert {work}/softmax.pt -o {out}/k.pt --gap 2": f"{CONVERT} --gap 2",
    "fairseq-train --store-ema": "fairseq-train",
    "fairseq-train --mixture-regularization 0.1": "fairseq-train",
    "fairseq-train --kernel kerbs_released --sense-bias": "fairseq-train --kernel kerbs_released",
    f"fairseq-train --finetune-from-model {MODEL} --total-senses 2": (
        f"fairseq-train --finetune-from-model {MODEL} --total-senses 3"
    ),
}
"""What the advice of a misuse leads to. Of several commands, all are followed, the last one first:
what is to be done before comes last."""

ADVICE = re.compile(
    r"--[a-z]|fairseq-kerbs |plot |leave|choose one|name a file in|did you mean|name a split|"
    r"give |add |use ",
    re.IGNORECASE,
)
"""What a remedy names, in the last part of a sentence."""
PLACE = re.compile(r" \(--[\w-]+ is in [^)]+\)$")
"""Where a flag of a configuration is, which is no remedy."""
ALONE = (
    # what is wrong, without a remedy besides that
    "no such option",
    "must name different sets",
    "ask for",
    "does not go with a configuration that has a placement",
    "none of the systems before the last",
    "lines have a source",
    "requires an argument",
    "does not go with translate, which reads",
    # a remedy that is another file, of the same kind as the one that is refused
    "give that of the target language",
    "give the tokenized text of a split",
    "give the one of fairseq-preprocess",
    "give one translation per line",
    "name a file in it",
    "give the reference translations",
    "give the translations of a system",
    "give one of its languages",
    "give two",
)
BESIDES = {
    "convert": {"--contexts", "--split"},
    "generate": {"--output"},
    "gold-translations": {"--least-share", "--least-count"},
    "neighbours": {"--least"},
    "plot theat": {"--data", "--word"},
    "train": {"--max-update"},
}
"""Flags that a followed command needs besides those that the message names."""
RANGE = re.compile(r"(--\S+) is \S+ but must be within ([\[(])(\S+), (\S+)[)\]]")


STOCK_SIZES = (
    "encoder-embed-dim",
    "encoder-hidden-size",
    "decoder-embed-dim",
    "decoder-hidden-size",
    "decoder-out-embed-dim",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    importlib.import_module("matplotlib.font_manager")  # its first time logs that it lists fonts
    folder = tiny_checkpoint.make_work(tmp_path_factory.mktemp("bad") / "work")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    turned = shutil.copytree(folder / "bin", folder / "turned") / "dict.en.txt"
    words = turned.read_text().splitlines()
    turned.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    (folder / "lm").mkdir()
    shutil.copy(folder / "bin" / "dict.en.txt", folder / "lm" / "dict.txt")
    for name, missing in (("no_training", "train.*"), ("one_side", "test*.de.*")):
        shutil.copytree(folder / "bin", folder / name, ignore=shutil.ignore_patterns(missing))
    for split, language in product(("blank", "empty"), tiny_checkpoint.LANGUAGES):
        prefix = folder / "bin" / f"{split}.de-en.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin")
        for _ in range(3 if split == "blank" else 0):
            builder.add_item(torch.tensor([2]))  # the end of a sentence
        builder.finalize(f"{prefix}.idx")
    flags = ("--output-layer", "softmax", "--save-dir", folder / "save")
    tiny_checkpoint.fairseq_train(folder / "bin", *flags)
    (folder / "save" / "checkpoint_last.pt").rename(folder / "softmax.pt")
    still = ("--kernel", "lin", "--reallocation", "none", "--save-dir", folder / "lin")
    tiny_checkpoint.fairseq_train(folder / "bin", *still, "--total-senses", 1, "--max-senses", 1)
    (folder / "lin" / "checkpoint_last.pt").rename(folder / "lin.pt")
    (folder / "begun" / "softmax").mkdir(parents=True)
    shutil.copy(folder / "softmax.pt", folder / "begun" / "softmax" / "checkpoint_last.pt")
    stock = ("--arch", "lstm", "--criterion", "cross_entropy", "--save-dir", folder / "stock")
    sizes = [f"--{name}=8" for name in STOCK_SIZES]
    tiny_checkpoint.fairseq_train(folder / "bin", *stock, *sizes)
    (folder / "stock" / "checkpoint_last.pt").rename(folder / "fairseq.pt")
    converting = ("convert", folder / "fairseq.pt", "-o", folder / "converted.pt")
    assert main([*map(str, converting), "--data", str(folder / "bin")]) == 0
    for name, file in (("hollow", "train.de-en.de.bin"), ("wordless", "dict.en.txt")):
        (shutil.copytree(folder / "bin", folder / name) / file).write_bytes(b"")
    few = shutil.copytree(folder / "bin", folder / "few")  # its training text is that of the test
    for test in few.glob("test.*"):
        shutil.copy(test, test.with_name(test.name.replace("test.", "train.")))
    more = folder / "more"
    shutil.copytree(folder / "bin", more)
    for valid in [*more.glob("valid.*")]:
        shutil.copy(valid, valid.with_name(valid.name.replace("valid.", "valid1.")))
    for plugin in ("my.plugin", "my_plugin", "plain_plugin"):
        (folder / plugin).mkdir()
        (folder / plugin / "__init__.py").touch()
    ours = "import fairseq_kerbs.criterions, fairseq_kerbs.models\n"
    (folder / "my_plugin" / "__init__.py").write_text(ours)
    for plugin in ("my_plugin", "plain_plugin"):  # an import would write this
        compileall.compile_dir(folder / plugin, quiet=1)
    for name in ("trained", "reversed"):
        (folder / name).mkdir()
        shutil.copy(folder / "model.pt", folder / name / "checkpoint_best.pt")
    record = {"source_lang": "de", "target_lang": "en", "bpe": "none", "escape": False}
    record |= {"lowercase": False, "source_moses": None, "target_moses": None}
    (folder / "preparation.json").write_text(json.dumps(record))
    (folder / "uncounted").write_text("".join(f"{line.split()[0]} 0\n" for line in words))
    names = ("senses", "negative", "moved", "stock", "reversed/checkpoint_best")
    spoilt = {name: read_checkpoint(folder / "model.pt") for name in names}
    spoilt["moved"]["cfg"]["task"]["data"] = str(folder / "gone")
    vars(spoilt["stock"]["cfg"]["model"]).update(_name="fconv", arch="fconv")
    spoilt["reversed/checkpoint_best"]["cfg"]["task"].update(source_lang="en", target_lang="de")
    spoilt["senses"]["cfg"]["model"].total_senses = 2.0
    spoilt["negative"]["model"]["decoder.output.inventory.usage"][5] = -1.0
    spoilt["foreign"] = {"a": 1}
    (folder / "strange").mkdir()
    spoilt["strange/checkpoint_last"] = spoilt["foreign"]
    for name, value in spoilt.items():
        torch.save(value, folder / f"{name}.pt")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("a file\n")
    return tmp_path


def run(command: str, work: Path, out: Path) -> tuple[Any, str]:
    """Exit status of a command run in this process, and the sentence that it is ended with."""
    program, *arguments = shlex.split(command.format(work=work, out=out))
    try:
        if program != "fairseq-train":
            return main([program, *arguments]), ""
        tiny_checkpoint.fairseq_train(work / "bin", "--save-dir", out / "save", *arguments)
    except SystemExit as ended:
        # as of a program of fairseq's, which knows no other status
        return (2, f"{ended.code}\n") if isinstance(ended.code, str) else (ended.code, "")
    return 0, ""


def files_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


@pytest.mark.parametrize(("command", "named"), MISUSES, ids=[one[0][:80] for one in MISUSES])
def test_misuse(command: str, named: str, work: Path, out: Path, capsys: Capsys) -> None:
    """Status 2, one sentence, nothing written."""
    before = files_below(work)
    capsys.readouterr()
    status, sentence = run(command, work, out)
    printed = capsys.readouterr().err + sentence
    (line,) = [line for line in printed.splitlines() if "error: " in line]
    assert status == 2
    assert named.replace("{work}", str(work)) in line
    # steps of a preparation that were finished stay; data are not there
    written = {name for name in files_below(out) if not name.startswith("dest/")}
    assert written - {"save/.lock"} == {"file"}
    assert not (out / "dest" / "bin").exists()
    assert files_below(work) == before
    check_followed(command, line)
    remedy = re.split(r"[;:] ", PLACE.sub("", line.partition("error: ")[2]))[-1]
    if ADVICE.search(remedy) and not RANGE.search(line) and not any(a in line for a in ALONE):
        assert command in FOLLOWED, f"follow this advice by a line of FOLLOWED: {remedy}"


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def check_followed(command: str, message: str) -> None:
    """A command that follows a message has no flag that the message does not name."""
    steps = FOLLOWED.get(command, ())
    for step in [steps] if isinstance(steps, str) else steps:
        if step.split()[0] == command.split()[0]:
            besides = [flags for name, flags in BESIDES.items() if command.startswith(name)]
            named = flags_in(command) | flags_in(message) | {"--dry-run"}
            assert flags_in(step) <= named.union(*besides), message


STEPS = {(steps,) if isinstance(steps, str) else steps: bad for bad, steps in FOLLOWED.items()}
"""Commands that follow advice, the last one first, and one of the misuses that they are for."""


@pytest.mark.usefixtures("standing_in")
@pytest.mark.parametrize("steps", STEPS, ids=[bad[:80] for bad in STEPS.values()])
def test_advice_helps(steps: tuple[str, ...], work: Path, out: Path, capsys: Capsys) -> None:
    """The command that follows the advice succeeds."""
    for step in reversed(steps):
        shutil.rmtree(out / "save", ignore_errors=True)
        status, sentence = run(step, work, out)
        assert status == 0, step + sentence + capsys.readouterr().err


NUMBER = re.compile(r"--\S+ is (?:nan|[-.\d]+)(?:, but must be within .*)?")
IN_RANGES = [one for one, named in MISUSES if NUMBER.fullmatch(named) and "fairseq-" not in one]


@pytest.mark.parametrize("command", IN_RANGES, ids=[one[:80] for one in IN_RANGES])
def test_a_number_of_the_interval_helps(
    command: str, work: Path, out: Path, capsys: Capsys
) -> None:
    """Its lower end, or where that is outside, a number above."""
    run(command, work, out)
    found = RANGE.search(capsys.readouterr().err)
    assert found is not None
    flag, bracket, low, _ = found.groups()
    number = float(low) + (0 if bracket == "[" else 0.5)
    text = str(int(number)) if number.is_integer() else str(number)
    changed = command.replace("translate ", "generate ")
    status, _ = run(f"{changed} {flag}={text} --dry-run", work, out)
    assert status == 0, capsys.readouterr().err


@pytest.mark.usefixtures("standing_in")
@pytest.mark.parametrize("lowercase", [False, True])
def test_generate_scores_as_the_record_says(
    lowercase: bool, work: Path, out: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    shutil.copytree(work / "bin", out / "data" / "bin")
    record = json.loads((work / "preparation.json").read_text())
    record |= {"lowercase": lowercase, "escape": lowercase}
    (out / "data" / "preparation.json").write_text(json.dumps(record))
    read = mock.Mock(wraps=bleu.read_systems)
    monkeypatch.setattr(bleu, "read_systems", read)
    command = GENERATE.replace("{work}/bin", "{out}/data/bin")
    status, sentence = run(f"{command} --reference {{work}}/text/test.en --beam 1", work, out)
    assert status == 0, sentence
    assert f"case:{'lc' if lowercase else 'mixed'}|" in capsys.readouterr().out
    assert read.call_args.kwargs["unescape"] == lowercase


def test_all_advice_that_is_followed_is_of_a_misuse() -> None:
    assert {*FOLLOWED} <= {command for command, _ in MISUSES}


def test_the_table_is_about_every_command() -> None:
    assert {command.split()[0] for command, _ in MISUSES} >= {*root.commands}


def _run_into(stdout: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-m", "fairseq_kerbs.cli", *map(str, arguments)], stdout)


def _run(command: list[str], stdout: int) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)


def test_nothing_but_the_sentence_is_printed(work: Path, out: Path) -> None:
    """No logs and no warnings of fairseq and torch beside it; also where the output is full."""
    error = "fairseq-kerbs: error: "
    read = ["senses", str(work / "model.pt"), "--data"]
    both = [[*read, str(work / "turned")], [*read, str(work / "bin"), "--split", "empty"]]
    # in one process, as each would import fairseq and torch
    code = "import sys; from fairseq_kerbs.cli import main; "
    code += f"sys.exit([main(call) for call in {both}] != [2, 2])"
    done = _run([sys.executable, "-c", code], subprocess.PIPE)
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "")
    assert first.startswith(f"{error}{work}/model.pt: the checkpoint has")
    assert second.startswith(f"{error}--split empty: it has no words")
    done = _run_into(subprocess.PIPE, "detokenize", "--lang", "en", out / "\udcff")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{error}{out}/\\udcff: no such file")
    with open("/dev/full", "w") as full:
        done = _run_into(full.fileno(), "toy", out / "corpus", "--train", 5)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("fairseq-kerbs: error: the output cannot be used (No space")


def test_a_reader_that_goes_away_is_no_error(out: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _run_into(writer, "toy", out / "corpus", "--train", 5)
    finally:
        os.close(writer)
    # what a shell says of a program that SIGPIPE ended
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_output_is_no_error() -> None:
    shell = f"{sys.executable} -m fairseq_kerbs.cli score --help >&- 2>&-"
    assert subprocess.run(shell, shell=True, cwd=ROOT, check=False).returncode == 0


def test_a_terminated_command_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminated(*arguments: object) -> int:
        with atomic_write(tmp_path / "file"):
            signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("fairseq_kerbs.cli.commands.run", terminated)
    try:
        with pytest.raises(SystemExit, match="143"):
            main([])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_command(monkeypatch: Patch, capsys: Capsys) -> None:
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("fairseq_kerbs.data.toy.write_toy_corpus", interrupted)
    assert main(["toy", "folder"]) == 130
    assert interrupted.called
    assert capsys.readouterr().err == "fairseq-kerbs: interrupted; run the same command again\n"


def test_packages_are_imported_where_they_are_needed(tmp_path: Path) -> None:
    """One that is missing there is told in one sentence."""
    start = "import sys; from fairseq_kerbs.cli import main; "
    told = f"{start}main(sys.argv[1:]); assert not {{'fairseq', 'torch'}} & sys.modules.keys()"
    shown = run_program(sys.executable, "-c", told, "user-dir", cwd=tmp_path)
    assert shown == f"{PLUGIN_FOLDER}\n"
    shown = run_program(sys.executable, "-m", "fairseq_kerbs.cli", "--version", cwd=tmp_path)
    assert shown == f"fairseq-kerbs {__version__}\n"
    arguments = ("train", "toy", "data", "save", "--dry-run")
    for package in ("yaml", "click"):
        told = f"import sys; sys.modules[{package!r}] = None; {start}sys.exit(main(sys.argv[1:]))"
        shown = run_program(sys.executable, "-c", told, *arguments, cwd=tmp_path, status=2)
        install = "run pip install 'fairseq_kerbs[fairseq,analysis,tables]'"
        assert shown == f"fairseq-kerbs: error: {package} is not installed; {install}\n"
    # the toy corpus, generated text and conversions need the extra "fairseq" alone
    others = ("pandas", "sklearn", "scipy", "snowballstemmer", "matplotlib", "jinja2")
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); "
    code += "import fairseq_kerbs.analysis.printed_senses, fairseq_kerbs.checkpoints.conversion; "
    code += "from fairseq_kerbs.cli import main; sys.exit(main(sys.argv[1:]))"
    toy = ("toy", "text", "--train", 9, "--valid", 9, "--test", 9)
    run_program(sys.executable, "-c", code, *toy, cwd=tmp_path)
    assert len((tmp_path / "text" / "train.senses.tsv").read_text().splitlines()) > 0


def test_fairseq_reads_the_plugin_without_click(tmp_path: Path) -> None:
    """Its own programs need nothing of the command line."""
    code = "import sys; sys.modules['click'] = None; "
    code += "import fairseq_kerbs.criterions, fairseq_kerbs.models, fairseq_kerbs.training.guards; "
    code += "assert not [name for name in sys.modules if name.startswith('fairseq_kerbs.cli')]"
    run_program(sys.executable, "-c", code, cwd=tmp_path)
