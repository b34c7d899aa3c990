"""``fairseq-kerbs convert``: a trained softmax model becomes KerBS, predicting the same."""

from __future__ import annotations

import argparse

from fairseq_kerbs.commands import arg, command, reading, say_written
from fairseq_kerbs.utils.errors import UserError


@command(
    "convert",
    reading.CHECKPOINT,
    arg.output("output checkpoint", "OUT", required=True),
    arg.file("--data", "folder of binarized data, whose contexts are clustered [none: one sense "
             "per word]", "BIN"),
    arg.number("--max-senses", 4, "maximum number of senses of a word", 1),
    arg.group(
        "with --data",
        arg.value("--extra-senses", "placement of senses beyond one per word: on the clusters of "
                  "each word's contexts [clusters]", choices=["clusters"]),
        arg.value("--total-senses", "maximum number of senses, in units of the vocabulary size "
                  "[1.5]", "F", type=arg.at_least(float, 1)),
        arg.value("--split", "split of --data for contexts [%(default)s]", default="train"),
        arg.number("--contexts", 600, "maximum number of sampled contexts of a word", 40),
        arg.number("--gap", 1.0, "maximum preference of a sense for its cluster. A larger value "
                   "separates senses more and changes predictions more", 0.001, "NATS"),
        arg.number("--memory", 2.0, "maximum memory for contexts", 1e-9, "GB"),
        arg.value("--valid-split", "split of --data for the loss before and after [%(default)s]",
                  "SPLIT", default="valid"),
    ),
    reading.TRUST,
)  # fmt: skip
def convert(args: argparse.Namespace) -> None:
    """give a trained softmax model senses

    Convert a transformer, transformer_lm, lstm or lstm_lm of fairseq, or a model of fairseq_kerbs
    with --output-layer softmax, into a KerBS model. Its predictions are the same, or nearly the
    same with several senses per word. For further training use fairseq-train --finetune-from-model.
    """
    from fairseq_kerbs import conversion
    from fairseq_kerbs.configurations import flag_arguments
    from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted

    for name in ("total_senses", "extra_senses") if args.data is None else ():
        if getattr(args, name) is not None:
            text = f"--{name.replace('_', '-')} is about senses on clusters of contexts"
            raise UserError(f"{text}: give --data BIN")
    args.total_senses = args.total_senses or min(1.5, args.max_senses)
    if args.total_senses > args.max_senses:
        raise UserError(f"--total-senses is {args.total_senses}, more than --max-senses")
    source = conversion.read_softmax_model(args.checkpoint, args.data, args.trust_checkpoint)
    placed = None if args.data is None else conversion.PlacedSenses(source, args)
    converted = conversion.convert(source, args.max_senses, placed.placement if placed else None)
    difference = f"{converted.difference:.2g} nats"
    summary = [f"largest difference of log-probabilities on random sentences: {difference}"]
    if placed is not None:
        summary = placed.summary(converted)
    flags = conversion.finetuning_flags(source.config, converted.settings, args.output)
    conversion.write_checkpoint(args.output, source, converted)
    words, senses = len(source.weight), len(converted.word_of_sense)
    say_written(args.output, f"{converted.settings.arch}, {words} words, {senses} senses")
    command = ["fairseq-train", "DATA", "--user-dir", str(PLUGIN_FOLDER), *flag_arguments(flags)]
    print(*summary, sep="\n")
    print(f"train on with: {quoted(command)} --max-update N --save-dir SAVE_DIR")
