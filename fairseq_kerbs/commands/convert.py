"""``fairseq-kerbs convert``: a trained softmax model becomes KerBS, predicting the same."""

from __future__ import annotations

import argparse

from fairseq_kerbs.commands import arg, command, reading, say_written, write_output
from fairseq_kerbs.utils.errors import UserError


@command(
    "convert",
    reading.CHECKPOINT,
    arg.output("the checkpoint to write", "OUT", required=True),
    arg.number("--total-senses", 1.5, "senses in all, a multiple of the target vocabulary", 1, "F"),
    arg.number("--max-senses", 4, "most senses of one word", 1),
    arg.choice(
        "--extra-senses",
        "where senses beyond one a word go: beside rare words, with next to no share of their "
        "probability, for reallocation to take; or on the clusters of each word's contexts in "
        "--data, where --total-senses is a limit",
        *("spare", "clusters"),
    ),
    arg.group(
        "with --extra-senses clusters",
        arg.value("--split", "split of --data [%(default)s]", default="train"),
        arg.number("--contexts", 600, "most contexts of a word, drawn at random", 40),
        arg.number("--gap", 1.0, "bound of how strongly senses prefer their own clusters: more "
                   "parts senses more, and changes predictions more", 0.001, "NATS"),
        arg.number("--memory", 2.0, "most memory for contexts", 1e-9, "GB"),
        arg.value("--valid-split", "split of --data for the loss before and after [%(default)s]",
                  "SPLIT", default="valid"),
    ),
    arg.either(
        arg.file("--data", "binarized data: word counts, and contexts for clusters", "BIN"),
        arg.file("--dict", "target dictionary: word counts"),
    ),
    arg.written("--config", "write the flags for training on as YAML"),
    reading.TRUST,
)  # fmt: skip
def convert(args: argparse.Namespace) -> None:
    """make a trained softmax model a KerBS model with the same predictions

    Turn a trained transformer, transformer_lm, lstm or lstm_lm of fairseq, or a model of
    fairseq_kerbs with --output-layer softmax, into a KerBS model with the same predictions, or
    nearly the same with clusters (theta = 0), to be trained on with fairseq-train
    --finetune-from-model.
    """
    import yaml

    from fairseq_kerbs.checkpoints import load_dictionary, remembered_dictionary
    from fairseq_kerbs.configurations import flag_arguments
    from fairseq_kerbs.conversion import model as conversion
    from fairseq_kerbs.conversion.model import finetuning_flags
    from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted

    if args.config and args.config.suffix not in (".yaml", ".yml"):
        raise UserError(
            f"--config {args.config} is written as YAML: name a file that ends in .yaml"
        )
    if args.total_senses > args.max_senses:
        raise UserError(f"--total-senses is {args.total_senses}, more than --max-senses")
    if args.extra_senses == "clusters" and args.data is None:
        raise UserError("--extra-senses clusters reads contexts: give --data BIN")
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
    extra, total = len(converted.plan.words), len(converted.plan.word_of_sense)
    difference = f"{converted.difference:.2g} nats"
    summary = [f"largest difference of log-probabilities on random sentences: {difference}"]
    if placed:
        summary = placed.summary(converted)
    elif extra:
        spare = f"spare senses: {total - words}, of the {extra} least frequent words by {by}"
        summary.insert(0, spare)
    flags = finetuning_flags(source.config, converted.settings, args.output)
    conversion.write_checkpoint(args.output, source, converted)
    if args.config is not None:
        text = f"going on with {args.checkpoint.name} as a KerBS model"
        content = {"description": text, "train": flags}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
        write_output(args.config, text, "flags for training on")
    say_written(args.output, f"{converted.settings.arch}, {words} words, {total} senses")
    command = ["fairseq-train", "DATA", "--user-dir", str(PLUGIN_FOLDER), *flag_arguments(flags)]
    print(*summary, sep="\n")
    print(f"train on with: {quoted(command)} --max-update N --save-dir SAVE_DIR")
