"""Change the code in one place at a time and see whether a test notices: a mutation check.

    scripts/mutation.sh [MODULE ...]

Verdicts go to ``results/mutation/MODULE.json`` as they come, the table of all and the survivors to
``results/mutation/report.md``. Why a survivor may live stands in
``results/mutation/arguments.json``; the exit status is 1 where one lives without an argument.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.mutation.mutants import Mutant, make_mutants
from scripts.mutation.processes import (
    CHECKOUT,
    Baseline,
    Warm,
    file_of,
    in_a_fork,
    run_pytest,
    verdict_of_import,
)

RESULTS = CHECKOUT / "results" / "mutation"
PROGRESS = os.dup(1)  # what forks print goes nowhere but here

# Module -> its own tests, then those through which the survivors go as well.
MODULES: dict[str, tuple[list[str], list[str]]] = {
    "kernels": (["kernels"], ["likelihood", "composition", "output_layers"]),
    "likelihood": (["likelihood"], ["chunked_nll", "output_layers"]),
    "reallocation": (["reallocation"], ["reallocation_balanced", "new_senses"]),
    "composition": (["composition"], ["models"]),
}


def check(module: str, mutants: list[Mutant], names: list[str], results: dict[str, Any]) -> None:
    """Run mutants against some test files; verdicts enter ``results`` and its file."""

    def note(mutant: Mutant, found: str) -> None:
        results[mutant.key] = {"line": mutant.line, "verdict": found}
        save(module, results)
        mark = "SURVIVED" if found == "survived" else "killed by " + found.rpartition("/")[2]
        text = f"{module} {len(results)} line {mutant.line} {mark}\n"
        if found == "survived":
            text += f"    - {mutant.before}\n    + {mutant.after}\n"
        os.write(PROGRESS, text.encode())

    def work() -> Any:
        warm = Warm(module, mutants, note)
        status = run_pytest(names, warm)
        failed = warm.failed or ("pytest" if status else "")
        return failed, results, warm.left, *warm.baseline

    if not mutants:
        return
    answer = in_a_fork(work)
    if isinstance(answer, str) or answer[0]:
        raise SystemExit(f"The tests fail without any mutant: {answer[:1]} in {names}")
    _, verdicts, left, seconds, calls = answer
    results.update(verdicts)
    for number in left:
        baseline = Baseline(seconds, calls)
        note(mutants[number], verdict_of_import(module, mutants[number], names, baseline))


def save(module: str, results: dict[str, Any]) -> None:
    """Write the verdicts of a module."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (RESULTS / f"{module}.json").write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    """A JSON file; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def report() -> int:
    """Write the table of all verdicts with the survivors; returns the number of those without an
    argument."""
    arguments = load(RESULTS / "arguments.json")
    table, lists, unargued = [], [], 0
    for module in MODULES:
        results = load(RESULTS / f"{module}.json")
        if not results:
            continue
        counts = Counter(
            one["verdict"] if one["verdict"] in ("survived", "timeout", "crash") else "killed"
            for one in results.values()
        )
        row = [len(results), *(counts[kind] for kind in ("killed", "timeout", "crash", "survived"))]
        table.append(f"| {module} | " + " | ".join(map(str, row)) + " |")
        lists += ["", f"## {module}", ""]
        for key, one in results.items():
            if one["verdict"] == "survived":
                why = arguments.get(module, {}).get(key)
                unargued += why is None
                lists.append(f"- line {one['line']}, `{key}`: {why or 'NO ARGUMENT YET'}")
    head = ["| module | mutants | killed | timeout | crash | survived |", "| --- " * 6 + "|"]
    text = "Made by `scripts/mutation.sh`. Under each module: what no test notices, and the reason."
    lines = ["# Mutation check", "", text, "", *head, *table, *lists]
    (RESULTS / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return unargued


def main() -> int:
    """Run the check; see the module's documentation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)} [all]"
    )
    parser.add_argument("--own", action="store_true", help="only with the module's own tests")
    parser.add_argument(
        "--again", action="store_true", help="only what lived on without an argument"
    )
    parser.add_argument("--report", action="store_true", help="write the report and run nothing")
    args = parser.parse_args()
    modules = [] if args.report else args.modules or list(MODULES)
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # the passes in C are the same mathematics once more and would stand in for some of it
    os.environ["FAIRSEQ_KERBS_FUSED"] = "0"
    sys.path.insert(0, str(CHECKOUT))
    import mpmath  # noqa: F401
    import scipy.integrate  # noqa: F401
    import torch  # noqa: F401

    survivors: dict[str, list[Mutant]] = {}
    for module in modules:
        mutants = make_mutants(file_of(module).read_text(encoding="utf-8"))
        known = load(RESULTS / f"{module}.json") if args.again else {}
        argued = load(RESULTS / "arguments.json").get(module, {})
        results = {m.key: {**known[m.key], "line": m.line} for m in mutants if m.key in known}

        def lives(mutant: Mutant, results: dict[str, Any] = results) -> bool:
            return results.get(mutant.key, {}).get("verdict", "survived") == "survived"

        left = [m for m in mutants if lives(m) and not (m.key in results and m.key in argued)]
        check(module, left, MODULES[module][0], results)
        save(module, results)
        survivors[module] = [m for m in left if lives(m)]
    if args.own:
        survivors.clear()
    if any(survivors.values()):
        import fairseq  # noqa: F401  the other tests need it, and it takes long to import
    for module, left in survivors.items():
        check(module, left, MODULES[module][1], load(RESULTS / f"{module}.json"))
    return int(report() > 0)


if __name__ == "__main__":
    sys.exit(main())
