#!/usr/bin/env bash
# Make what a release consists of, in dist/: an sdist, a wheel, a small model with senses to try, a
# page of its senses to look at before anything is installed, and their checksums. Nothing is
# uploaded.
#
# usage: scripts/release.sh [--check] [FOLDER]
#
#   --check   only see whether the checkout can be released
#
# The model is the one with senses that scripts/quickstart.sh makes in FOLDER [quickstart/ in the
# checkout]; if it is not there, quickstart.sh runs first. The wheel is then installed into a fresh
# environment, where the commands of the model's README run. One of them makes the page.
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

say() { printf '[release] %s\n' "$*"; }
fail() { say "$@" >&2; exit 1; }

check_only=
case "${1:-}" in
  -h | --help) usage; exit ;;
  --check) check_only=yes; shift ;;
  -*) echo "release.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
MOST_BYTES=4000000  # of the model with its data

# What is released is a commit, and three files agree on its version and date.
check_checkout() {
  local cited changes
  version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$CHECKOUT/fairseq_kerbs/__init__.py")
  cited=$(sed -n 's/^version: *//p' "$CHECKOUT/CITATION.cff")
  date=$(sed -n 's/^date-released: *"\(.*\)"$/\1/p' "$CHECKOUT/CITATION.cff")
  [[ $cited == "$version" ]] \
    || fail "CITATION.cff has version $cited, fairseq_kerbs/__init__.py has $version: write the same into both"
  grep -qxF "## $version ($date)" "$CHECKOUT/CHANGELOG.md" \
    || fail "CHANGELOG.md has no heading '## $version ($date)', with version and date of CITATION.cff: correct one of them"
  changes=$(git -C "$CHECKOUT" status --porcelain 2>&1) \
    || fail "$CHECKOUT is no git checkout: a release is made from a commit"
  [[ -z $changes ]] \
    || fail "$(wc -l <<<"$changes") files differ from the commit, first ${changes:3:60}: commit or remove them" \
      "(git status)"
}

# Put the model, its data and a page on it into the archive.
make_demo() {
  rm -rf -- demo
  mkdir -p demo/data/bpe demo/data/bin
  cp -- kerbs/checkpoint_best.pt demo/
  cp -- data/bin/*.{txt,bin,idx} demo/data/bin/
  cp -- data/bpe/codes demo/data/bpe/
  cp -- data/preparation.json demo/data/
  cat >demo/README.txt <<'TEXT'
A small translation model with senses, trained on a synthetic corpus: German-like to English-like,
with twelve ambiguous words such as "bank" and "light". Once fairseq_kerbs is installed, try in this
folder:

    fairseq-kerbs senses checkpoint_best.pt --data data/bin --word bank
    echo "Das Meer zerstört mein Ufer." | fairseq-kerbs translate toy data/bin . --print-senses
    fairseq-kerbs report checkpoint_best.pt --data data/bin -o senses.html
TEXT
  # of one commit and model, the same bytes
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
    --transform "s,^demo,$name," demo | gzip --no-name >"$dist/$name.tar.gz"
  local bytes
  bytes=$(stat -c %s "$dist/$name.tar.gz")
  ((bytes <= MOST_BYTES)) || fail "$name.tar.gz has $bytes bytes, more than $MOST_BYTES"
}

# Run the commands of the model's README, as one does who has only the files in dist/. The last one
# makes the page.
try_demo() {
  local place=$folder/try site said
  rm -rf -- "$place"
  "$PYTHON" -m venv "$place/venv"
  logged '' "$place/venv/bin/pip" install --no-deps "$dist"/*.whl
  # What the plugin needs, fairseq's programs too, is taken from this environment. It is not
  # installed again.
  site=$("$place/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/dependencies.pth"
  tar -xzf "$dist/$name.tar.gz" -C "$place"
  cd -- "$place/$name"
  said=$("$place/venv/bin/python" -c 'import fairseq_kerbs; print(fairseq_kerbs.__file__)')
  [[ $said == "$site"/* ]] || fail "the wheel was not tried: Python imports $said"
  export PATH="$place/venv/bin:$(dirname -- "$PYTHON"):$PATH"
  while read -r command; do
    say "trying: $command"
    logged '' bash -o pipefail -c "$command" </dev/null
  done < <(sed -n 's/^    //p' README.txt)
  mv -- senses.html "$dist/$name.html"
  cd -- "$folder"
  rm -rf -- "$place"
}

check_checkout
if [[ -n $check_only ]]; then
  say "version $version of $date can be released"
  exit
fi
folder=$(readlink -m -- "${1:-$CHECKOUT/quickstart}")
[[ -e $folder/senses.txt ]] || bash "$CHECKOUT/scripts/quickstart.sh" "$folder"
find_python
dist=$CHECKOUT/dist
LOG=$folder/release.log
name=fairseq_kerbs-$version-demo
rm -rf -- "$dist"

say "building the sdist and the wheel (log in $LOG)"
logged '' "$PYTHON" -m build --outdir "$dist" "$CHECKOUT"
cd -- "$folder"
make_demo
(try_demo)
cd -- "$dist"
sha256sum -- fairseq_kerbs-* >SHA256SUMS
say "done; $dist has"
while read -r sum file; do
  printf '%9s bytes  %s  %s\n' "$(stat -c %s "$file")" "$sum" "$file"
done <SHA256SUMS
