#!/usr/bin/env bash
# Make what a release consists of, in dist/: an sdist, a wheel, a small model with senses to try, and
# a page of its senses to look at before anything is installed. Nothing is uploaded.
#
# usage: scripts/release.sh [FOLDER]
#
# The model is a softmax, trained on the corpus of scripts/quickstart.sh, to which
# 'fairseq-kerbs convert' gives senses. FOLDER [quickstart/ in the checkout] has the corpus; if it
# is not there, quickstart.sh runs first. May be repeated: a model that is there is not trained again.
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

case "${1:-}" in
  -h | --help) usage; exit ;;
  -*) echo "release.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
MOST_BYTES=4000000  # of the model and its dictionaries

say() { printf '[release] %s\n' "$*"; }

# run COMMAND...: fairseq-kerbs, with its output in the log
run() {
  say "fairseq-kerbs $*"
  logged '' kerbs "$@"
}

folder=$(readlink -m -- "${1:-$CHECKOUT/quickstart}")
[[ -e $folder/data/bin/dict.en.txt ]] || bash "$CHECKOUT/scripts/quickstart.sh" "$folder"
find_python
dist=$CHECKOUT/dist
LOG=$folder/release.log
name=fairseq_kerbs-$("$PYTHON" -m fairseq_kerbs.cli --version | awk '{print $2}')-demo
rm -rf -- "$dist"

say "building the sdist and the wheel (log in $LOG)"
logged '' "$PYTHON" -m build --outdir "$dist" "$CHECKOUT"

cd -- "$folder"
run train "$CHECKOUT/configs/toy.yaml" data/bin softmax --output-layer softmax --sense-bias
mkdir -p demo/data/bpe demo/data/bin
run convert softmax/checkpoint_best.pt -o demo/checkpoint_best.pt --data data/bin --total-senses 1.25
cp data/bin/dict.*.txt demo/data/bin/
cp data/bpe/codes* data/bpe/vocabulary.* demo/data/bpe/
cp data/preparation.json demo/data/
cat >demo/README.txt <<'TEXT'
A German-like to English-like translation model with senses on a synthetic corpus. In this folder:

    echo SENTENCE | fairseq-kerbs translate toy data/bin . --print-senses
    fairseq-kerbs senses checkpoint_best.pt --dict data/bin/dict.en.txt --word bank
TEXT
run report demo/checkpoint_best.pt --data data/bin -o "$dist/$name.html"
tar -czf "$dist/$name.tar.gz" --transform "s,^demo,$name," demo

bytes=$(stat -c %s "$dist/$name.tar.gz")
if ((bytes > MOST_BYTES)); then
  say "$name.tar.gz has $bytes bytes, more than $MOST_BYTES" >&2
  exit 1
fi
say "done: $(cd -- "$dist" && ls -1 | paste -sd' ')"
