"""The recipe of a configuration with ``senses``: a softmax is trained, and gets senses on clusters
of its contexts in the middle of the training."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.commands import announce
from fairseq_kerbs.configurations import Flags, SensesOnClusters, program_arguments
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import SAFE, find_program, quoted, run_program


def give_senses(
    args: argparse.Namespace, senses: SensesOnClusters, flags: Flags, files: tuple[Path, ...]
) -> Flags:
    """Train a softmax in SAVE_DIR/softmax and give it senses, unless that has been done. Returns
    the flags of a training that begins with these, its rate, too. Raises what `check_recipe` does.
    """
    given = check_recipe(args, senses, flags)
    updates = max(1, round(senses.at * int(given.max_update)))
    softmax = Path(args.save_dir) / "softmax"
    placed = softmax / "senses.pt"
    first = {**flags, "output-layer": "softmax", "save-dir": str(softmax)}
    extra = [*args.extra, "--max-update", str(updates)]
    polynomial = given.lr_scheduler == "polynomial_decay"
    if polynomial and given.total_num_update is None:
        extra += ["--total-num-update", given.max_update]  # of the whole training
    train = [find_program("fairseq-train"), *program_arguments(args.data, first, extra)]
    convert = [sys.executable, *SAFE, "-m", "fairseq_kerbs.cli", "convert"]
    convert += [str(softmax / "checkpoint_last.pt"), "-o", str(placed), "--data", args.data]
    convert += ["--extra-senses", "clusters", "--total-senses", str(senses.total)]
    convert += ["--max-senses", given.max_senses, "--trust-checkpoint"]
    total = str(senses.total)
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
    said = {word.partition("=")[0] for word in args.extra}
    said |= {f"--{name}" for name in flags if name != "output-layer"}
    own = ("--total-senses", "--output-layer", "--restore-file", "--finetune-from-model")
    clash = [flag for flag in own if flag in said]
    clash += sorted(flag for flag in said if flag.startswith("--reset-"))
    if clash:
        raise UserError(
            f"{clash[0]} does not go with a configuration that has senses; leave it out"
        )
    if not (given.max_update or "").isdecimal() or int(given.max_update) < 2:
        raise UserError("a configuration with senses needs --max-update, 2 or more")
    if given.save_dir != args.save_dir:
        raise UserError(
            "--save-dir does not go with a configuration that has senses: give SAVE_DIR"
        )
    if given.lr_scheduler in ("cosine", "tri_stage"):
        raise UserError(
            f"--lr-scheduler {given.lr_scheduler} goes by --max-update, which a training with "
            "senses reaches in two parts; take polynomial_decay, inverse_sqrt or fixed"
        )
    if not given.max_senses.isdecimal() or senses.total > int(given.max_senses):
        raise UserError(
            f"senses: total is {senses.total}, more than --max-senses {given.max_senses}"
        )
    if ":" in args.data:
        raise UserError(f"{args.data}: a training with senses takes one folder of data")
    return given
