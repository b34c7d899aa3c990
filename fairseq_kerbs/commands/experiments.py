"""``fairseq-kerbs train`` and ``generate``: fairseq with the flags of a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers
    from fairseq_kerbs.tables.experiments import Experiment


def _add_parser(commands: Subparsers, name: str, done: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=f"fairseq-{name} with the flags of a configuration{done}",
        description=f"Print and run fairseq-{name} with the flags of CONFIG. Flags that are not "
        f"listed here go to fairseq-{name} and replace those of CONFIG.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file, see configs/")
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess wrote")
    parser.add_argument("save_dir", metavar="SAVE_DIR", help="folder of the checkpoints")
    parser.add_argument("--dry-run", action="store_true", help="only print the command")
    parser.set_defaults(passes_on=True)  # flags that it does not know go to fairseq
    return parser


def _announce(experiment: Experiment, command: Sequence[str], redirect: str = "") -> None:
    """Print the command, ready to be pasted, under a line that says where its flags come from."""
    from fairseq_kerbs.utils.processes import quoted

    files = ", ".join(str(file) for file in experiment.files)
    print(f"# flags: {files}; command line\n{quoted(command)}{redirect}", flush=True)


def add_train(commands: Subparsers) -> None:
    """fairseq-train."""
    _add_parser(commands, "train", "").set_defaults(run=_run_train)


def _run_train(args: argparse.Namespace) -> int:
    from fairseq_kerbs.tables import experiments
    from fairseq_kerbs.utils.processes import find_program, replace_process

    experiment = experiments.load_experiment(args.config)
    experiments.check_data(args.data)
    arguments = experiments.train_arguments(experiment, args.data, args.save_dir, args.extra)
    command = [find_program("fairseq-train"), *arguments]
    _announce(experiment, command)
    if not args.dry_run:
        experiments.check_restored(arguments)
        replace_process(command)
    return 0


def add_generate(commands: Subparsers) -> None:
    """fairseq-generate, and BLEU."""
    parser = _add_parser(commands, "generate", ", and BLEU")
    output = "file to write to [SAVE_DIR/generate-SUBSET.txt]"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output)
    reference = "raw text of the target side: print detokenized BLEU"
    parser.add_argument("--reference", type=Path, metavar="FILE", help=reference)
    unescape = "undo XML entities (of 'prepare --escape') for BLEU"
    parser.add_argument("--unescape", action="store_true", help=unescape)
    parser.set_defaults(run=_run_generate)


def _run_generate(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.bleu import score_file
    from fairseq_kerbs.tables import experiments
    from fairseq_kerbs.utils.files import atomic_write
    from fairseq_kerbs.utils.processes import find_program, quoted, run_program

    experiment = experiments.load_experiment(args.config)
    experiments.check_data(args.data)
    arguments = experiments.generate_arguments(experiment, args.data, args.save_dir, args.extra)
    if experiments.argument_value(arguments, "--results-path") is not None:
        raise UserError("--results-path would take the output elsewhere; use --output FILE")
    if args.reference is not None and not args.reference.is_file():
        raise UserError(f"--reference {args.reference}: no such file")
    language = experiments.target_language(args.data, arguments)
    subset = experiments.argument_value(arguments, "--gen-subset")
    output = args.output or Path(args.save_dir) / f"generate-{subset}.txt"
    command = [find_program("fairseq-generate"), *arguments]
    _announce(experiment, command, redirect=f" > {quoted([output])}")
    if args.dry_run:
        return 0
    experiments.check_checkpoints(experiments.argument_value(arguments, "--path") or "")
    with atomic_write(output) as stream:
        status = run_program(command, stdout=stream)
        if status != 0:
            raise UserError(f"fairseq-generate failed with status {status}; see its message above")
    if args.reference is not None:
        result = score_file(output, [args.reference], language=language, unescape=args.unescape)
        print(result.details)
    return 0
