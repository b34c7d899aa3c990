#!/usr/bin/env bash
# Install fairseq_kerbs from this checkout into its own .venv: torch, fairseq 0.12.2 made to run on
# today's Python, and the plugin in editable mode. May be repeated; what is there already is kept.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/install.sh [--python PROGRAM] [--extras dev]

  --python PROGRAM   the Python (3.11 to 3.13) that .venv is made with (default: python3, or the
                     first of python3.13, python3.12, python3.11 if that is another version)
  --extras dev       also install what scripts/test.sh needs

TORCH=REQUIREMENT    the torch to install (default: torch==2.13.0); without it, a torch that is
                     already in .venv is kept
FAIRSEQ_SDIST=FILE   use this copy of fairseq-0.12.2.tar.gz instead of downloading it
TEXT
}

say() { printf '[install] %s\n' "$*"; }
fail() { printf '[install] %s\n' "$*" >&2; exit 1; }

python=
extras=
while (($#)); do
    case $1 in
        --python | --extras)
            (($# > 1)) && [[ -n $2 ]] || fail "$1 needs a value (see --help)"
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        -h | --help) usage; exit ;;
        *) usage >&2; fail "unknown argument: $1" ;;
    esac
done
[[ -z $extras || $extras == dev ]] || fail "unknown extras: $extras (there is only: dev)"

unset CDPATH  # cd would look there first
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.venv
venv_python=$PWD/$venv/bin/python
wheel_folder=$PWD/scripts/fairseq_wheel
record=$venv/fairseq_kerbs-install

# Runs PYTHON... with the modules of the wheel's build on its path, and leaves no bytecode there.
with_build() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$wheel_folder "$@"; }

supported() {
    "$1" -c 'import sys
found = sys.version_info[:2]
if not (3, 11) <= found <= (3, 13):
    sys.exit("[install] %s is Python %d.%d: use Python 3.11 to 3.13" % ((sys.executable,) + found))'
}

# A sentence about a missing compiler or header, before anything is downloaded.
can_compile() {
    local problem
    problem=$(with_build "$1" -m fairseq_build.toolchain 2>&1) || fail "$problem"
}

# Version of an installed distribution, or nothing.
version_of() {
    "$venv_python" -c 'import sys
from importlib.metadata import distributions
print(next((found.version for found in distributions(name=sys.argv[1])), ""))' "$1"
}

choose_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && supported "$candidate" >/dev/null 2>&1; then
            python=$candidate
            return
        fi
    done
    command -v python3 >/dev/null || fail "there is no Python: install one of 3.11 to 3.13"
    supported python3 || fail "no supported Python found; name one with --python"
}

make_venv() {
    [[ -n $python ]] || choose_python
    command -v "$python" >/dev/null || fail "there is no program $python"
    supported "$python" || exit 1
    can_compile "$python"
    local release
    release=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null \
        || fail "$python cannot make virtual environments: install the Debian package python$release-venv"
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
    say "bringing pip up to date"
    "$venv_python" -m pip install --quiet --upgrade pip
}

# Programs of a virtual environment begin with the path of its Python.
if [[ -f $venv/bin/activate ]]; then
    made=$(set +u; . "$venv/bin/activate" >/dev/null 2>&1; printf %s "$VIRTUAL_ENV")
    [[ $made -ef $venv ]] || fail "$venv was made as $made, and its programs do not run where it is now:" \
        "remove $PWD/$venv and run scripts/install.sh again"
fi
if [[ -x $venv_python ]] && "$venv_python" -m pip --version >/dev/null 2>&1; then
    if [[ -n $python && $("$python" --version) != $("$venv_python" --version) ]]; then
        fail "$venv holds $("$venv_python" --version), not $("$python" --version): remove it first"
    fi
    supported "$venv_python" || exit 1
    say "using $venv ($("$venv_python" --version))"
else
    make_venv
fi

# What one call of pip has to install, so that everything is resolved together.
requirements=()
present=$(version_of torch)
if [[ -n ${TORCH:-} ]]; then
    requirements+=("$TORCH")
elif [[ -n $present ]]; then
    say "torch $present is there: kept"
else
    requirements+=(torch==2.13.0)
fi

wanted=$(with_build "$venv_python" -c 'from fairseq_build.edits import VERSION; print(VERSION)')
if [[ $(version_of fairseq) == "$wanted" ]]; then
    say "fairseq $wanted is there: kept"
else
    can_compile "$venv_python"
    say "fairseq $wanted will be built from the source of 0.12.2 (about a minute)"
    requirements+=("$wheel_folder")
fi

# The plugin is installed again when its description or its C code changed, when the compiled passes
# are gone, or when more extras are asked for.
plugin_state="$PWD $(cat setup.py fairseq_kerbs/likelihood/backends/csrc/* | cksum | tr ' ' -)"
known=$(cat "$record" 2>/dev/null || true)
if [[ -n $(version_of fairseq_kerbs) && ${#requirements[@]} == 0 ]] \
    && compgen -G "fairseq_kerbs/likelihood/backends/_passes*.so" >/dev/null \
    && [[ $known == "$plugin_state dev" || (-z $extras && $known == "$plugin_state ") ]]; then
    say "fairseq_kerbs is there: kept"
else
    requirements+=(--editable "$PWD${extras:+[$extras]}")
fi

if ((${#requirements[@]})); then
    say "pip install ${requirements[*]}"
    rm -f "$record"
    "$venv_python" -m pip install "${requirements[@]}"
    printf '%s %s\n' "$plugin_state" "$extras" >"$record"
fi

say "checking"
"$venv_python" -m pip check
(
    cd "$venv"  # away from the checkout, so that the installed packages are what is imported
    "$venv_python" -W ignore - <<'PY'
import logging

logging.disable(logging.INFO)  # fairseq recommends packages that nothing here needs

import fairseq.data.data_utils_fast, fairseq.libbleu, fairseq_cli.train
import fairseq_kerbs
import torch
from fairseq_kerbs.likelihood.backends import cpu

passes = "with its compiled passes" if cpu.library() else "WITHOUT its compiled passes (slower)"
print(f"[install] fairseq {fairseq.__version__} and fairseq_kerbs, {passes}, run with torch {torch.__version__}")
PY
)
say "done: source $venv/bin/activate"
