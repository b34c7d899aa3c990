#!/usr/bin/env bash
# Install fairseq_kerbs from this checkout into its own .venv: torch, fairseq 0.12.2 made to run on
# today's Python, and the plugin in editable mode. May be repeated; what is there already is kept.
#
# usage: scripts/install.sh [--python PROGRAM] [--extras dev]
#
#   --python PROGRAM   the Python (3.9 to 3.13) that .venv is made with (default: the first of
#                      python3, python3.13, python3.12, … that will do)
#   --extras dev       also install what scripts/test.sh needs
#
# TORCH=REQUIREMENT    the torch to install (default: torch==2.13.0, or 2.8.0, the last for Python
#                      3.9); without it, a torch that is already in .venv is kept
# FAIRSEQ_SDIST=FILE   use this copy of fairseq-0.12.2.tar.gz instead of downloading it
# INSTALL_LOG=FILE     where all that pip prints goes (default: .venv/install.log)

source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

say() { printf '[install] %s\n' "$*"; }
fail() { say "$@" >&2; exit 1; }

python=
extras=
while (($#)); do
  case $1 in
    --python | --extras)
      (($# > 1)) || fail "$1 needs a value (see --help)"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    -h | --help) usage; exit ;;
    *) usage >&2; fail "unknown argument: $1" ;;
  esac
done
[[ -z $extras || $extras == dev ]] || fail "unknown extras: $extras (there is only: dev)"

cd "$CHECKOUT"
venv=.venv
venv_python=$PWD/$venv/bin/python
wheel_folder=$PWD/scripts/fairseq_wheel
record=$venv/fairseq_kerbs-install
LOG=${INSTALL_LOG:-$PWD/$venv/install.log}
trap 'say "interrupted; run the same command again to go on" >&2; exit 130' INT

# Say what PROGRAM lacks to build and run fairseq; fail if that is anything.
lacks() {
  command -v "$1" >/dev/null || { echo "there is no program $1"; return 1; }
  "$1" - 2>&1 <<'PY'
import shutil, sys
version = "{}.{}".format(*sys.version_info)
if not (3, 9) <= sys.version_info[:2] <= (3, 13):
    sys.exit("%s is Python %s: use Python 3.9 to 3.13" % (sys.executable, version))
from sysconfig import get_config_var, get_path
if not shutil.which((get_config_var("CXX") or "c++").split()[0]):
    sys.exit("there is no C++ compiler: install the Debian package g++")
try:
    open(get_path("include") + "/Python.h").close()
except OSError as error:
    sys.exit("%s: install the Debian package python%s-dev" % (error, version))
PY
}

make_venv() {
  local candidate problem first='' candidates=(python3 python3.{13,12,11,10,9})
  [[ -z $python ]] || candidates=("$python")
  for candidate in "${candidates[@]}"; do
    if problem=$(lacks "$candidate"); then
      say "making $venv with $("$candidate" --version)"
      "$candidate" -m venv "$venv"
      logged '' "$venv_python" -m pip install --upgrade pip
      return
    fi
    first=${first:-$problem}
  done
  fail "$first"
}

# Version of an installed distribution, or nothing.
version_of() { "$venv_python" -m pip show "$1" 2>/dev/null | sed -n 's/^Version: //p' || true; }

# Programs of a virtual environment begin with the path of its Python.
if [[ -x $venv/bin/pip ]] && ! "$venv/bin/pip" --version >/dev/null 2>&1; then
  fail "programs of $venv do not run, as after a move: remove $PWD/$venv and run scripts/install.sh again"
fi
[[ -z $python ]] || command -v "$python" >/dev/null || fail "there is no program $python (--python)"
if [[ -x $venv_python ]] && "$venv_python" -m pip --version >/dev/null 2>&1; then
  [[ -z $python || $("$python" --version) == $("$venv_python" --version) ]] \
    || fail "$venv holds $("$venv_python" --version), not $("$python" --version): remove it first"
  say "using $venv ($("$venv_python" --version))"
else
  make_venv
fi

# What one call of pip has to install, so that everything is resolved together.
requirements=()
if [[ -n ${TORCH:-} || -z $(version_of torch) ]]; then
  newest=$("$venv_python" -c 'import sys; print("2.13.0" if sys.version_info >= (3, 10) else "2.8.0")')
  requirements+=("${TORCH:-torch==$newest}")
fi
wanted=$(sed -n 's/^VERSION = "\(.*\)".*/\1/p' "$wheel_folder/fairseq_edits.py")
if [[ $(version_of fairseq) != "$wanted" ]]; then
  problem=$(lacks "$venv_python") || fail "$problem"
  say "fairseq $wanted will be built from the source of 0.12.2 (about a minute)"
  requirements+=("$wheel_folder")
fi
# The plugin is installed again when its description changed, when it is gone, or when more extras
# are asked for.
state=$(cksum <setup.py)
if [[ ${#requirements[@]} != 0 || $(cat "$record" 2>/dev/null) != "$state "*"$extras" ]] \
  || [[ -z $(version_of fairseq_kerbs) ]]; then
  requirements+=(--editable "$PWD[fairseq,analysis,tables${extras:+,$extras}]")
  say "pip install ${requirements[*]} (log in $LOG)"
  rm -f "$record"
  logged 's/^ *(Building wheel for [^ ]+.*started|Installing collected packages).*/[install] \1/p' \
    "$venv_python" -m pip install "${requirements[@]}"
  echo "$state $extras" >"$record"
fi

say "checking"
logged '' "$venv_python" -m pip check
# -P: the installed packages are imported, and not what lies in the checkout
PYTHONSAFEPATH=1 logged '/^\[install/p' "$venv_python" -W ignore -c '
import fairseq, fairseq.data.data_utils_fast, fairseq.libbleu, fairseq_cli.train, fairseq_kerbs, torch
print(f"[install] fairseq {fairseq.__version__} and fairseq_kerbs run with torch {torch.__version__}")'
say "done: source $venv/bin/activate"
