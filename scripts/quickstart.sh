#!/usr/bin/env bash
# From a fresh checkout to a trained model, its BLEU and its senses: installs into .venv, makes the
# synthetic corpus, trains transformer_kerbs on it (a few minutes on two cores), translates the test
# set with beam 5, and shows what the senses of ambiguous words stand for.
#
# usage: scripts/quickstart.sh [FOLDER]
#
# Results go to FOLDER [quickstart/ in the checkout]. May be repeated: a step whose result is there
# is not run again; remove FOLDER to start afresh.
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

case "${1:-}" in
  -h | --help) usage; exit ;;
  -*) echo "quickstart.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac

say() { printf '\n[quickstart] %s\n' "$*"; }
# Run fairseq-kerbs with stderr in FOLDER/NAME.err, the end of which is shown if it fails.
step() {
  local log=$folder/$1.err
  (kerbs "${@:2}") 2>"$log" || { tail -n 20 "$log" >&2; exit 1; }
}

folder=${1:-$CHECKOUT/quickstart}
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd)
config=$CHECKOUT/configs/toy.yaml
begun=$SECONDS

say "1/6 install"
bash "$CHECKOUT/scripts/install.sh"
installed=$SECONDS

say "2/6 the synthetic corpus: German-like to English-like, twelve ambiguous English words"
[ -f "$folder/text/train.senses.tsv" ] || (kerbs toy "$folder/text")

say "3/6 tokenize, learn and apply BPE, binarize"
(kerbs prepare --train "$folder/text/train" --valid "$folder/text/valid" --test "$folder/text/test" \
  --source-lang de --target-lang en --merges 2000 --dest "$folder/data")

say "4/6 train transformer_kerbs"
if [ -f "$folder/model/finished" ]; then
  echo "a trained model is there: $folder/model"
else
  step train train "$config" "$folder/data/bin" "$folder/model" | tee "$folder/train.log" \
    | grep --line-buffered -E 'command|fairseq-train|train_inner|valid on|reallocation after'
  touch "$folder/model/finished"
fi

say "5/6 translate the test set with beam 5"
step generate generate "$config" "$folder/data/bin" "$folder/model" --reference "$folder/text/test.en"

say "6/6 senses of the ambiguous words"
step senses senses "$folder/model/checkpoint_best.pt" --data "$folder/data/bin" \
  --gold "$folder/text/test.senses.tsv" --json "$folder/senses.json"

say "done in $((SECONDS - begun)) s, $((SECONDS - installed)) s of them after the install: $folder"
