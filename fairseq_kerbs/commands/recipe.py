"""The training of a configuration that gives senses to a softmax in the middle of the training."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.commands import announce
from fairseq_kerbs.configurations import Flags, SensesOnClusters, program_arguments
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import SAFE, find_program, quoted, run_program

_OURS = ("--total-senses", "--output-layer", "--restore-file", "--finetune-from-model")
_TWO_PARTS = (
    "goes by --max-update, which a training with senses reaches in two parts; take "
    "polynomial_decay, inverse_sqrt or fixed"
)


def give_senses(
    args: argparse.Namespace, senses: SensesOnClusters, flags: Flags, files: tuple[Path, ...]
) -> Flags:
    """Train a softmax in SAVE_DIR/softmax and give it senses, unless that has been done. Returns
    the flags of a training that begins with these, its rate, too. Raises what `check_recipe` does.
    """
    given = check_recipe(args, senses, flags)
    updates = max(1, round(senses.at * int(given.max_update)))
    softmax = Path(args.save_dir) / "softmax"
    placed, total = softmax / "senses.pt", str(senses.total)
    first = {**flags, "output-layer": "softmax", "save-dir": str(softmax)}
    extra = [*args.extra, "--max-update", str(updates)]
    polynomial = given.lr_scheduler == "polynomial_decay"
    if polynomial and given.total_num_update is None:
        extra += ["--total-num-update", given.max_update]  # of the whole training
    train = [find_program("fairseq-train"), *program_arguments(args.data, first, extra)]
    convert = [sys.executable, *SAFE, "-m", "fairseq_kerbs.cli", "convert"]
    convert += [str(softmax / "checkpoint_last.pt"), "-o", str(placed), "--data", args.data]
    convert += ["--total-senses", total, "--max-senses", given.max_senses, "--trust-checkpoint"]
    for command in (train, convert) if args.dry_run or not placed.exists() else ():
        announce(files, quoted(command))
        if not args.dry_run and (status := run_program(command)) != 0:
            raise SystemExit(status)
    if placed.exists():
        total = str(read_checkpoint(placed, trust=True)["cfg"]["model"].total_senses)
    rest = str(int(given.max_update) - updates)
    args.extra = [*args.extra, "--max-update", rest, "--finetune-from-model", str(placed)]
    if polynomial:
        args.extra += ["--total-num-update", rest]
    flags = {**flags, "output-layer": "kerbs", "total-senses": total, "sense-bias": True}
    return flags | {"reallocation": "none"}


def check_recipe(
    args: argparse.Namespace, senses: SensesOnClusters, flags: Flags
) -> argparse.Namespace:
    """What a training with senses has to know of its flags; a UserError if it cannot go with
    them, before anything is trained."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("max-update", "save-dir", "lr-scheduler", "total-num-update"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--max-senses", default="4")
    given = parser.parse_known_args(program_arguments(args.data, flags, args.extra))[0]
    used = {word.partition("=")[0] for word in args.extra}
    used |= {f"--{name}" for name in flags if name != "output-layer"}
    clash = sorted(flag for flag in used if flag in _OURS or flag.startswith("--reset-"))
    clash += ["--save-dir"] if given.save_dir != args.save_dir else []
    most, scheduler = given.max_senses, given.lr_scheduler
    for wrong, sentence in (
        (clash, f"{', '.join(clash)} does not go with a configuration that has senses"),
        (
            not (given.max_update or "").isdecimal() or int(given.max_update) < 2,
            "a configuration with senses needs --max-update, 2 or more",
        ),
        (scheduler in ("cosine", "tri_stage"), f"--lr-scheduler {scheduler} {_TWO_PARTS}"),
        (
            not most.isdecimal() or senses.total > int(most),
            f"senses: total is {senses.total}, more than --max-senses {most}",
        ),
        (":" in args.data, f"{args.data}: a training with senses takes one folder of data"),
    ):
        if wrong:
            raise UserError(sentence)
    return given
