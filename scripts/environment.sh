# Sourced by the scripts that run the plugin: finds the checkout and a Python that has fairseq.
# Sets CHECKOUT and PYTHON, and defines usage, find_python, kerbs and logged.

set -euo pipefail
unset CDPATH  # cd would look there first, and print where it went
CHECKOUT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

# Print the comment at the head of the script.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

# Choose the checkout's .venv, else the active environment if it has fairseq.
find_python() {
  PYTHON=$CHECKOUT/.venv/bin/python
  [ -x "$PYTHON" ] || PYTHON=$(command -v python3 || true)
  if ! PYTHONSAFEPATH=1 "$PYTHON" -c \
      'import importlib.util as u, sys; sys.exit(u.find_spec("fairseq") is None)' 2>/dev/null; then
    echo "$(basename -- "$0"): no fairseq found; run $CHECKOUT/scripts/install.sh first" >&2
    exit 1
  fi
}

# Become `fairseq-kerbs` with the arguments given, from this checkout.
kerbs() {
  find_python
  export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}"
  PYTHONSAFEPATH=1 exec "$PYTHON" -m fairseq_kerbs.cli "$@"  # nothing here hides a module
}

# logged EXPRESSION COMMAND...: add all that COMMAND prints to the file LOG, and show what the
# sed EXPRESSION makes of it; if COMMAND fails, show the end of LOG and exit.
logged() {
  local status=0
  "${@:2}" 2>&1 | tee -a "$LOG" | sed --unbuffered -nE "$1" || status=$?
  case $status in
    0) return ;;
    130 | 143) ;;  # a signal
    *) tail -n 20 "$LOG"; echo "$(basename -- "$0"): that is the end of $LOG" ;;
  esac >&2
  exit "$status"
}
