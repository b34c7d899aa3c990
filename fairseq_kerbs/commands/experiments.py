"""``fairseq-kerbs train`` and ``generate``: fairseq with the flags of a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


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


def _announce(files: tuple[Path, ...], command: str) -> None:
    """Print the command, ready to be pasted, under a line that says where its flags come from."""
    print(f"# flags: {', '.join(map(str, files))}; command line\n{command}", flush=True)


def add_train(commands: Subparsers) -> None:
    """fairseq-train."""
    _add_parser(commands, "train", "").set_defaults(run=_run_train)


def _run_train(args: argparse.Namespace) -> int:
    from fairseq_kerbs.tables import experiments
    from fairseq_kerbs.utils.processes import find_program, quoted, replace_process

    experiment = experiments.load_experiment(args.config)
    experiments.check_data(args.data)
    flags = {"save-dir": args.save_dir, **experiment.train}
    arguments = experiments.program_arguments(args.data, flags, args.extra)
    command = [find_program("fairseq-train"), *arguments]
    _announce(experiment.files, quoted(command))
    if not args.dry_run:
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
    best = str(Path(args.save_dir) / "checkpoint_best.pt")
    flags = {"path": best, "gen-subset": "test", **experiment.generate}
    arguments = experiments.program_arguments(args.data, flags, args.extra)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--path",), ("--gen-subset",), ("--target-lang", "-t")):
        parser.add_argument(*names)
    said, _ = parser.parse_known_args(arguments)
    if args.reference is not None and not args.reference.is_file():
        raise UserError(f"--reference {args.reference}: no such file")
    language = said.target_lang or experiments.language_pair(args.data)[1]
    output = args.output or Path(args.save_dir) / f"generate-{said.gen_subset}.txt"
    command = [find_program("fairseq-generate"), *arguments]
    _announce(experiment.files, f"{quoted(command)} > {quoted([output])}")
    if args.dry_run:
        return 0
    for checkpoint in map(Path, said.path.split(":")):
        if not checkpoint.is_file():
            raise UserError(f"no checkpoint {checkpoint}; train first, or name another with --path")
    with atomic_write(output) as stream:
        status = run_program(command, stdout=stream)
        if status != 0:
            raise UserError(f"fairseq-generate failed with status {status}; see its message above")
    if args.reference is not None:
        result = score_file(output, [args.reference], language=language, unescape=args.unescape)
        print(result.details)
    return 0
