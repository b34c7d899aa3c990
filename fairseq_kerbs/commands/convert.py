"""``fairseq-kerbs convert``: a trained softmax model becomes KerBS, predicting the same."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_kerbs.commands import OutputPath, Subparsers, add_trust_flag, say_written, write_output
from fairseq_kerbs.utils.errors import UserError


def add_convert(commands: Subparsers) -> None:
    """Convert a model."""
    parser = commands.add_parser(
        "convert",
        help="make a trained softmax model a KerBS model with the same predictions",
        description="Turn a trained transformer, transformer_lm, lstm or lstm_lm of fairseq, or a "
        "model of fairseq_kerbs with --output-layer softmax, into a KerBS model with the same "
        "predictions, or nearly the same with clusters (theta = 0), to be trained on with "
        "fairseq-train --finetune-from-model.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add(
        "-o",
        "--output",
        type=OutputPath,
        required=True,
        metavar="OUT",
        help="the checkpoint to write",
    )
    add("--total-senses", type=float, default=1.5, metavar="F",
        help="senses in all, as a multiple of the target vocabulary [%(default)s]")  # fmt: skip
    add("--max-senses", type=int, default=4, metavar="N", help="most senses of one word [4]")
    add("--extra-senses", choices=("spare", "clusters"), default="spare",
        help="where senses beyond one a word go: beside rare words, with next to no share of their "
        "probability, for reallocation to take; or on the clusters of each word's contexts in "
        "--data, where --total-senses is a limit [%(default)s]")  # fmt: skip
    clusters = parser.add_argument_group("with --extra-senses clusters")
    clusters.add_argument("--split", default="train", help="split of --data [%(default)s]")
    clusters.add_argument("--contexts", type=int, default=600, metavar="N",
        help="most contexts of a word, drawn at random [%(default)s]")  # fmt: skip
    clusters.add_argument("--gap", type=float, default=1.0, metavar="NATS",
        help="bound of how strongly senses prefer their own clusters: more parts senses more, and "
        "changes predictions more [%(default)s]")  # fmt: skip
    clusters.add_argument("--memory", type=float, default=2.0, metavar="GB",
        help="most memory for contexts [%(default)s]")  # fmt: skip
    clusters.add_argument("--valid-split", default="valid", metavar="SPLIT",
        help="split of --data for the loss before and after [%(default)s]")  # fmt: skip
    counts = parser.add_mutually_exclusive_group()
    counts.add_argument(
        "--data",
        type=Path,
        metavar="BIN",
        help="binarized data: word counts, and contexts for clusters",
    )
    counts.add_argument("--dict", type=Path, metavar="FILE", help="target dictionary: word counts")
    add("--config", type=OutputPath, metavar="FILE", help="write the flags for training on as YAML")
    add_trust_flag(parser)
    parser.set_defaults(run=_run_convert)


def _run_convert(args: argparse.Namespace) -> int:
    _check_flags(args)
    import yaml

    from fairseq_kerbs.checkpoints import load_dictionary, remembered_dictionary
    from fairseq_kerbs.configurations import flag_arguments
    from fairseq_kerbs.conversion import model as conversion
    from fairseq_kerbs.conversion.flags import finetuning_flags
    from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted

    source = conversion.read_softmax_model(args.checkpoint, args.trust_checkpoint)
    words, dictionary, by = len(source.weight), None, "the order of the dictionary"
    path = args.dict
    if args.data is not None:
        path = remembered_dictionary(args.checkpoint, source.config, args.data)
    if path is not None:
        dictionary, by = load_dictionary(path, words, source.state), f"the counts of {path}"
    placed = None
    if args.extra_senses == "clusters":
        placed = conversion.PlacedSenses(source, args, dictionary)
    placement = placed.placement if placed else None
    converted = conversion.convert(
        source, args.total_senses, args.max_senses, dictionary, placement
    )
    summary = placed.summary(converted) if placed else []
    flags = finetuning_flags(source.config, converted.settings, args.output)
    conversion.write_checkpoint(args.output, source, converted)
    if args.config is not None:
        text = f"going on with {args.checkpoint.name} as a KerBS model"
        content = {"description": text, "train": flags}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
        write_output(args.config, text, "flags for training on")
    extra, total = len(converted.plan.words), len(converted.plan.word_of_sense)
    say_written(args.output, f"{converted.settings.arch}, {words} words, {total} senses")
    if summary:
        print("\n".join(summary))
    else:
        if extra:
            print(f"spare senses: {total - words}, of the {extra} least frequent words by {by}")
        print(
            "largest difference of log-probabilities on random sentences: "
            f"{converted.difference:.2g} nats"
        )
    command = ["fairseq-train", "DATA", "--user-dir", str(PLUGIN_FOLDER), *flag_arguments(flags)]
    print(f"train on with: {quoted(command)} --max-update N --save-dir SAVE_DIR")
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    if args.config and args.config.suffix not in (".yaml", ".yml"):
        raise UserError(
            f"--config {args.config} is written as YAML: name a file that ends in .yaml"
        )
    most = max(1, args.max_senses)
    for name, right, range_ in (
        ("max_senses", args.max_senses >= 1, "at least 1"),
        ("total_senses", 1 <= args.total_senses <= most, f"between 1 and --max-senses ({most})"),
        ("contexts", args.contexts >= 40, "at least 40"),
        ("gap", args.gap > 0, "above 0"),
        ("memory", 0 < args.memory < 1e6, "above 0"),
    ):
        if not right:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} is {getattr(args, name)}, but must be {range_}")
    if args.extra_senses == "clusters" and args.data is None:
        raise UserError("--extra-senses clusters reads contexts: give --data BIN")
