#!/usr/bin/env bash
# From a fresh checkout to a trained model, its BLEU and its senses: installs into .venv, makes the
# synthetic corpus, trains a Transformer with a softmax on it (a few minutes), gives it senses,
# translates the test set with beam 5, and shows what the senses of ambiguous words stand for.
#
# usage: scripts/quickstart.sh [FOLDER]
#
# Results go to FOLDER [quickstart/ in the checkout]. May be repeated: what is installed, prepared and
# trained is kept, and the other steps run again. Remove FOLDER to start afresh.
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

case "${1:-}" in
  -h | --help) usage; exit ;;
  -*) echo "quickstart.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac

# A second thread gains little on tensors of this size. Beside a busy program it waits most of the time.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

say() { printf '[quickstart] %s\n' "$*"; }
now=1/7  # the step that runs

# step TEXT COMMAND...
step() {
  say "$1"
  now=${1%% *}
  "${@:2}"
}
trap 'say "interrupted; run the same command again to go on from step $now" >&2; exit 130' INT

# A line every 200 updates, and one each validation.
train() {
  local LOG=$PWD/train.log
  logged 's/.* train_inner .* loss=([^,]+),.* num_updates=([0-9]*[02468]00),.*/\2 updates: loss \1/p
    s/.* valid .*\| loss (\S+) .*\| num_updates ([0-9]+).*/\2 updates: validation loss \1/p' \
    kerbs train "$config" data/bin model --output-layer softmax --reallocation none
}

# Senses to read: as many of a word as source words and neighbours tell apart.
convert() {
  mkdir -p kerbs
  logged '/senses a word/p; /^loss of/p' kerbs convert model/checkpoint_best.pt \
    -o kerbs/checkpoint_best.pt --data data/bin --total-senses 2
}

# One word as an example, and how well the senses of all words agree with the true ones.
senses() {
  local LOG=$PWD/senses.txt
  rm -f senses.txt
  logged '' kerbs senses kerbs/checkpoint_best.pt --data data/bin \
    --gold text/test.senses.tsv --json senses.json
  grep -v '^wrote ' senses.txt | awk -v RS= -v ORS='\n\n' '/^bank:/ || /^word +n +gold/ || /^mean of/'
}

folder=${1:-$CHECKOUT/quickstart}
mkdir -p -- "$folder"
cd -- "$folder"
config=$CHECKOUT/configs/toy.yaml
LOG=$PWD/steps.log
say "all that the steps print goes to $LOG, and to train.log and senses.txt beside it"

INSTALL_LOG=$LOG step "1/7 install" bash "$CHECKOUT/scripts/install.sh"
installed=$SECONDS
step "2/7 make the synthetic corpus: German-like to English-like, twelve ambiguous English words" \
  logged p kerbs toy text
step "3/7 tokenize, learn and apply BPE, binarize" \
  logged '/kept/p' kerbs prepare --train text/train --valid text/valid --test text/test \
  --source-lang de --target-lang en --merges 2000 --dest data
step "4/7 train a Transformer with a softmax, 1,200 updates: a few minutes" train
step "5/7 give its words senses, on clusters of their contexts" convert
step "6/7 translate the test set with beam 5" \
  logged '/^BLEU/p' kerbs generate "$config" data/bin kerbs --reference text/test.en
step "7/7 senses of the ambiguous words, by the test set" senses
say "done in $SECONDS s, $((SECONDS - installed)) s of them after the install;" \
  "all senses: $PWD/senses.txt"
