"""``fairseq-kerbs plot``: figures as PNG, PDF or SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairseq_kerbs.cli.models import check_senses, read_model
from fairseq_kerbs.cli.output import say_written, show, write_files
from fairseq_kerbs.cli.parameters import (
    FILE,
    OUTPUT,
    Command,
    Group,
    ModelCommand,
    Several,
    Whole,
    checkpoint_argument,
    csv_option,
    data_or_none_option,
    dictionary_option,
    examples,
    json_option,
    trust_option,
)
from fairseq_kerbs.utils.errors import UserError

figure_option = click.option(
    "-o",
    "--output",
    type=OUTPUT,
    metavar="FILE",
    required=True,
    help="output file, .png, .pdf or .svg",
)


@click.group(
    "plot",
    cls=Group,
    no_args_is_help=False,
    epilog=examples(
        "plot theta runs/toy/checkpoint_best.pt -o theta.svg --word bank",
        "plot contexts runs/toy/checkpoint_best.pt --data data/bin --word bank -o bank.png",
        "plot history train.log -o history.pdf",
        "plot kernels -o kernels.pdf",
    ),
)
def plot() -> None:
    """Figures as PNG, PDF or SVG.

    Draw a figure.
    """


def save(figure: Any, output: Path, name: str) -> None:
    """Write a figure, and say so."""
    from fairseq_kerbs.analysis.plots import save_figure

    save_figure(figure, output)
    say_written(output, name)


@plot.command(
    "contexts",
    cls=ModelCommand,
    epilog=examples(
        "plot contexts runs/toy/checkpoint_best.pt --data data/bin --word bank -o bank.png",
        "plot contexts models/bert-base-uncased --text train.en --word monitor --word car vehicle "
        "-o bert.png",
    ),
)
@click.argument("path", type=FILE, metavar="MODEL")
@click.option(
    "--word",
    "panels",
    type=Several(),
    metavar="WORD...",
    multiple=True,
    required=True,
    help="entry of the dictionary. With a folder, one or more words of the text. Each repetition "
    "of the flag draws a panel",
)
@click.option(
    "--most",
    type=Whole(min=2, max=100_000),
    metavar="N",
    default=300,
    help="maximum number of contexts of a word, drawn at random",
)
@click.option(
    "--projection",
    type=click.Choice(["discriminants", "pca"]),
    help="plane of the figure: linear discriminants of the senses with marks at their means, or "
    "principal components with marks at the sense embeddings [discriminants; with a folder pca]",
)
@click.option("--data", type=FILE, metavar="BIN", help="with a file: folder of binarized data")
@click.option("--split", metavar="SPLIT", help="with a file: split of the data [train]")
@trust_option
@click.option(
    "--text", type=FILE, metavar="FILE", help="with a folder: text with one sentence per line"
)
@click.option(
    "--seed",
    type=Whole(min=0),
    metavar="N",
    help="with a folder: seed of the random choice [1]",
)
@json_option
@csv_option
@figure_option
def contexts(
    path: Path,
    panels: tuple[tuple[str, ...], ...],
    most: int,
    projection: str | None,
    data: Path | None,
    split: str | None,
    trust_checkpoint: bool,
    text: Path | None,
    seed: int | None,
    json_file: Path | None,
    csv_file: Path | None,
    output: Path,
) -> None:
    """Context vectors of words (Figure 1 of the paper).

    MODEL is the file of a trained model, or the folder of a masked or causal language model in the
    Hugging Face format. For the file, draw the context vectors of a word by sense, with the names
    of senses. For the folder, such as BERT's, draw the context vectors of words of a text, with a
    color for each word. It needs the extra hf. Weights are read from model.safetensors, and no code
    from the folder runs.
    """
    from fairseq_kerbs.analysis.plots import check_figure_path

    check_figure_path(output)
    if not path.exists():
        raise UserError(
            f"{path}: no such file or folder; models are not downloaded, so name a file of a "
            "trained model, or a folder in the Hugging Face format"
        )
    folder = path.is_dir()
    of_file = {"--data": data, "--split": split, "--trust-checkpoint": trust_checkpoint or None}
    of_folder = {"--text": text, "--seed": seed}
    _check_flags(path, of_file if folder else of_folder)
    if folder:
        if text is None:
            raise UserError(f"--text is missing, which {path} needs")
        from fairseq_kerbs.cli.plot_contexts import contexts_of_words

        drawn = contexts_of_words(path, text, panels, most, projection, 1 if seed is None else seed)
    else:
        if data is None:
            raise UserError(f"--data is missing, which {path} needs")
        from fairseq_kerbs.cli.plot_contexts import contexts_by_sense

        word = _one_word(panels)
        trained = read_model(path, data, trust=trust_checkpoint)
        split = "train" if split is None else split
        drawn = contexts_by_sense(trained, data, split, word, most, projection)
    write_files(json_file, csv_file, drawn.result, drawn.csv)
    if drawn.text:
        show(drawn.text)
    save(drawn.figure, output, "contexts")


def _check_flags(path: Path, flags: dict[str, Any]) -> None:
    """Refuse flags that go with the other kind of model."""
    given = [name for name, value in flags.items() if value is not None]
    kind = "a file of a trained model" if path.is_dir() else "a folder in the Hugging Face format"
    if given:
        raise UserError(
            f"{', '.join(given)} goes with {kind}, but {path} is not one; leave it out, or name "
            "another MODEL"
        )


def _one_word(panels: tuple[tuple[str, ...], ...]) -> str:
    """The only word; a UserError if there are several."""
    words = [word for panel in panels for word in panel]
    if len(words) > 1:
        raise UserError(
            f"--word: {', '.join(words)}: the contexts of a trained model are drawn for one word "
            "at a time; give one"
        )
    return words[0]


@plot.command(
    "theta",
    cls=Command,
    epilog=examples(
        "plot theta runs/toy/checkpoint_best.pt -o theta.svg --word bank",
        "plot theta runs/toy/checkpoint_best.pt -o theta.svg --word car vehicle --word dog animal",
    ),
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@trust_option
@click.option(
    "--word",
    "sets",
    type=Several(),
    metavar="WORD...",
    multiple=True,
    required=True,
    help="entries of the dictionary. Each repetition of the flag draws a panel with a set of words",
)
@click.option(
    "--label",
    "labels",
    type=Several(),
    metavar="TITLE...",
    default=(),
    help="title of each panel",
)
@json_option
@csv_option
@figure_option
def theta(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    trust_checkpoint: bool,
    sets: tuple[tuple[str, ...], ...],
    labels: tuple[str, ...],
    json_file: Path | None,
    csv_file: Path | None,
    output: Path,
) -> None:
    """Theta of the senses of words, with their mean weighted by usage (Figure 3 of the paper).

    Draw theta of each sense. The paper shows sets of nouns, each from narrow to broad concepts.
    """
    from pandas import DataFrame

    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.words import csv_of, sense_numbers, usage_shares, word_numbers

    plots.check_figure_path(output)
    if labels and len(labels) != len(sets):
        raise UserError(
            f"--label has {len(labels)} titles for {len(sets)} sets of words; give one for each "
            "--word"
        )
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint)
    check_senses(trained, checkpoint)
    layer, entries, *_ = trained
    if not layer.has_theta:
        raise UserError(
            f"the kernel {layer.kernel_name} of {checkpoint} has no theta; name a model with "
            "--kernel kerbs, or draw 'plot usage' or 'plot contexts' of this one"
        )
    theta_of_senses = layer.kernel.theta_of(layer.theta.detach())
    if not theta_of_senses.any():
        raise UserError(
            f"θ of all senses of {checkpoint} is 0, as 'fairseq-kerbs convert' sets it, so that "
            "there is nothing to draw; train the model on, or draw 'plot usage' or 'plot contexts'"
        )
    words_of_sets = [list(dict.fromkeys(words)) for words in sets]
    thetas = []
    shares = []
    rows = []
    for number, words in enumerate(words_of_sets, start=1):
        senses = [sense_numbers(layer, word) for word in word_numbers(entries, words)]
        thetas.append([theta_of_senses[numbers].tolist() for numbers in senses])
        shares.append([usage_shares(layer, numbers).tolist() for numbers in senses])
        for word, values, parts in zip(words, thetas[-1], shares[-1]):
            rows += [
                {"set": number, "word": word, "sense": sense, "theta": value, "share": share}
                for sense, (value, share) in enumerate(zip(values, parts), start=1)
            ]
    write_files(json_file, csv_file, rows, csv_of(DataFrame(rows)))
    save(plots.plot_theta(words_of_sets, thetas, shares, labels), output, "theta")


@plot.command(
    "frequency",
    cls=Command,
    epilog=examples("plot frequency runs/toy/checkpoint_best.pt --data data/bin -o frequency.png"),
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@trust_option
@figure_option
def frequency(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    trust_checkpoint: bool,
    output: Path,
) -> None:
    """Number of senses of each word over its frequency in the training data."""
    from fairseq_kerbs.analysis.plots import check_figure_path, plot_frequency
    from fairseq_kerbs.analysis.report import training_counts

    check_figure_path(output)
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint)
    check_senses(trained, checkpoint)
    layer, entries, *_ = trained
    counts = training_counts(entries)
    if not any(counts):
        raise UserError("the dictionary has no counts of words; give the one of fairseq-preprocess")
    save(plot_frequency(layer.senses_per_word().tolist(), counts), output, "frequency")


@plot.command(
    "usage", cls=Command, epilog=examples("plot usage runs/toy/checkpoint_best.pt -o usage.png")
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@trust_option
@figure_option
def usage(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    trust_checkpoint: bool,
    output: Path,
) -> None:
    """Histograms of usage over all senses, and of usage within words."""
    from fairseq_kerbs.analysis.plots import check_figure_path, plot_usage

    check_figure_path(output)
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint)
    check_senses(trained, checkpoint)
    layer = trained.layer
    save(plot_usage(layer.usage, layer.word_of_sense), output, "usage")


@plot.command("history", cls=Command, epilog=examples("plot history train.log -o history.pdf"))
@click.argument("log", type=FILE)
@figure_option
def history(log: Path, output: Path) -> None:
    """Words by number of senses, moved senses, loss and quantiles of theta over training.

    LOG is the output of fairseq-train or 'fairseq-kerbs train', or its --tensorboard-logdir.
    """
    from fairseq_kerbs.analysis.plots import check_figure_path, plot_history, read_history

    check_figure_path(output)
    save(plot_history(read_history(log)), output, "history")


@plot.command("kernels", cls=Command, epilog=examples("plot kernels -o kernels.pdf"))
@figure_option
def kernels(output: Path) -> None:
    """Kernels and gradients of Gao et al. over the squared distance, and KerBS over the cosine."""
    from fairseq_kerbs.analysis.plots import check_figure_path, plot_kernels

    check_figure_path(output)
    save(plot_kernels(), output, "kernels")
