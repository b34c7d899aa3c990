#!/usr/bin/env bash
# From a fresh checkout to a trained model, its BLEU and its senses: installs into .venv, makes the
# synthetic corpus, trains transformer_kerbs on it (a few minutes on two cores), translates the test
# set with beam 5, and shows what the senses of ambiguous words stand for.
#
# usage: scripts/quickstart.sh [FOLDER]
#
# Results go to FOLDER [quickstart/ in the checkout]. May be repeated: a step whose result is there
# is not run again; remove FOLDER to start afresh. All that the steps print is in FOLDER/steps.log
# and FOLDER/train.log; the senses of all ambiguous words are in FOLDER/senses.txt and senses.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

case "${1:-}" in
  -h | --help) usage; exit ;;
  -*) echo "quickstart.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac

say() { printf '[quickstart] %s\n' "$*"; }

# step TEXT COMMAND...: a job of its own, of which a signal stops every process.
step() {
  say "$1"
  now=${1%% *}
  { trap 'exit 130' INT TERM HUP; "${@:2}"; } &
  job=$!
  wait "$job"
}

# stop SIGNAL STATUS
stop() {
  trap '' INT TERM HUP
  kill -s "$1" -- "-$job" 2>/dev/null || true
  while kill -0 -- "-$job" 2>/dev/null; do sleep 0.1; done
  say "interrupted; run the same command again to go on from step $now" >&2
  exit "$2"
}

job=
set -m  # jobs are process groups
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM
trap 'stop TERM 129' HUP

corpus() { [ -f text/train.senses.tsv ] || logged p kerbs toy text; }

prepare() {
  logged '/kept/p' kerbs prepare --train text/train --valid text/valid --test text/test \
    --source-lang de --target-lang en --merges 2000 --dest data
}

# A line every 200 updates and one each validation.
train() {
  local LOG=$PWD/train.log
  [ ! -f model/finished ] || { say "a trained model is there: $PWD/model"; return; }
  logged 's/.* train_inner .* loss=([^,]+),.* num_updates=([0-9]*[02468]00),.*/\2 updates: loss \1/p
    s/.* valid .*\| loss (\S+) .*\| num_updates ([0-9]+).*/\2 updates: validation loss \1/p' \
    kerbs train "$config" data/bin model
  touch model/finished
}

translate() {
  logged '/^BLEU/p' kerbs generate "$config" data/bin model --reference text/test.en
}

# One word as an example, and how well the senses of all words agree with the true ones.
senses() {
  logged '' write_senses
  awk -v RS= -v ORS='\n\n' '/^bank:/ || /^word +count/' senses.txt
}

write_senses() {
  kerbs senses model/checkpoint_best.pt --data data/bin --gold text/test.senses.tsv \
    --json senses.json >senses.txt
}

folder=${1:-$CHECKOUT/quickstart}
mkdir -p -- "$folder"
cd -- "$folder"
config=$CHECKOUT/configs/toy.yaml
LOG=$PWD/steps.log
say "all that the steps print goes to $LOG and train.log beside it"

export INSTALL_LOG=$LOG
step "1/6 install" bash "$CHECKOUT/scripts/install.sh"
installed=$SECONDS
step "2/6 make the synthetic corpus: German-like to English-like, twelve ambiguous English words" corpus
step "3/6 tokenize, learn and apply BPE, binarize" prepare
step "4/6 train transformer_kerbs, 1,200 updates: a few minutes on two cores" train
step "5/6 translate the test set with beam 5" translate
step "6/6 senses of the ambiguous words, by the test set" senses
say "done in $SECONDS s, $((SECONDS - installed)) s of them after the install; all senses: $PWD/senses.txt"
