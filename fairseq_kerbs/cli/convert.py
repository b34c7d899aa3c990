"""``fairseq-kerbs convert``: give a trained softmax model senses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from fairseq_kerbs.cli.output import say_written
from fairseq_kerbs.cli.parameters import (
    FILE,
    ModelCommand,
    Number,
    OutputFile,
    Whole,
    checkpoint_argument,
    examples,
    trust_option,
)
from fairseq_kerbs.utils.errors import UserError


@click.command(
    "convert",
    cls=ModelCommand,
    epilog=examples("convert softmax.pt -o kerbs.pt --data data/bin"),
    needs=dict.fromkeys(
        (
            "--total-senses",
            "--number-of-senses",
            "--least-information",
            "--split",
            "--contexts",
            "--gap",
            "--memory",
            "--valid-split",
        ),
        ("--data",),
    ),
)
@checkpoint_argument
@click.option(
    "-o",
    "--output",
    type=OutputFile(model=True),
    metavar="OUT",
    required=True,
    help="output checkpoint",
)
@click.option(
    "--data",
    type=FILE,
    metavar="BIN",
    help="folder of binarized data, whose contexts are clustered [none: one sense per word]",
)
@click.option(
    "--max-senses",
    type=Whole(min=1, max=100),
    metavar="N",
    default=4,
    help="maximum number of senses of a word",
)
@click.option(
    "--total-senses",
    type=Number(min=1),
    metavar="F",
    help="with --data: maximum number of senses, in units of the vocabulary size [3, "
    "or --max-senses if that is less]",
)
@click.option(
    "--number-of-senses",
    type=click.Choice(["evidence", "distortion"]),
    help="with --data: what decides how many senses a word has. evidence is for senses to read: "
    "few, where source words and neighbours tell them apart. distortion is for further training: "
    "rows that lower the loss, as many as --total-senses allows [evidence for translation models, "
    "distortion for language models]",
)
@click.option(
    "--least-information",
    type=Number(min=0, max=1),
    metavar="F",
    help="for evidence: minimum share of the entropy of senses, and of source words, that "
    "neighbours explain. A larger value gives fewer senses [0.2]",
)
@click.option(
    "--split", metavar="SPLIT", default="train", help="with --data: its split for contexts"
)
@click.option(
    "--contexts",
    type=Whole(min=40),
    metavar="N",
    default=600,
    help="with --data: maximum number of sampled contexts of a word",
)
@click.option(
    "--gap",
    type=Number(min=0.001, max=100),
    metavar="NATS",
    default=1.0,
    help="with --data: maximum preference of a sense for its cluster. A larger value separates "
    "senses more and changes predictions more",
)
@click.option(
    "--memory",
    type=Number(min=1e-9),
    metavar="GB",
    default=2.0,
    help="with --data: maximum memory for contexts",
)
@click.option(
    "--valid-split",
    metavar="SPLIT",
    default="valid",
    help="with --data: its split for the loss before and after",
)
@trust_option
def convert(
    checkpoint: Path,
    output: Path,
    data: Path | None,
    max_senses: int,
    total_senses: float | None,
    number_of_senses: str | None,
    least_information: float | None,
    split: str,
    contexts: int,
    gap: float,
    memory: float,
    valid_split: str,
    trust_checkpoint: bool,
) -> None:
    """Give a trained softmax model senses.

    Convert a transformer, transformer_lm, lstm or lstm_lm of fairseq, or a model of fairseq_kerbs
    with --output-layer softmax, into a KerBS model. Its predictions are the same, or nearly the
    same with several senses per word. For further training use fairseq-train --finetune-from-model,
    and --number-of-senses distortion.
    """
    from fairseq_kerbs.checkpoints.conversion import (
        ConversionSettings,
        PlacementOnData,
        convert_checkpoint,
    )
    from fairseq_kerbs.configurations import flag_arguments
    from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted

    if number_of_senses == "distortion" and least_information is not None:
        raise UserError(
            "--least-information is for --number-of-senses evidence; leave one of them out"
        )
    total = total_senses or min(3.0, max_senses)
    if total > max_senses:
        raise UserError(
            f"--total-senses is {total}, more than --max-senses {max_senses}; change one of them"
        )
    placement = None
    if data is not None:
        evidence = None
        if number_of_senses != "distortion":
            from fairseq_kerbs.analysis.evidence import number_by_evidence
            from fairseq_kerbs.reallocation.evidence import LEAST_INFORMATION

            least = LEAST_INFORMATION if least_information is None else least_information
            evidence = partial(number_by_evidence, least_information=least)
        placement = PlacementOnData(
            total_senses=total,
            split=split,
            valid_split=valid_split,
            contexts=contexts,
            gap=gap,
            memory=memory,
            evidence=evidence,
            evidence_needed=number_of_senses == "evidence" or least_information is not None,
        )
    settings = ConversionSettings(max_senses, data, placement, trust_checkpoint)
    done = convert_checkpoint(checkpoint, output, settings)
    say_written(output, f"{done.arch}, {done.words} words, {done.senses} senses")
    if data is not None:
        reading = ["fairseq-kerbs", "senses", str(output), "--data", str(data)]
        print(f"read the senses with: {quoted(reading)}")
    command = ["fairseq-train", "DATA", "--user-dir", str(PLUGIN_FOLDER)]
    command += flag_arguments(done.finetuning)
    print(*done.summary, sep="\n")
    print(f"train on with: {quoted(command)} --max-update N --save-dir SAVE_DIR")
