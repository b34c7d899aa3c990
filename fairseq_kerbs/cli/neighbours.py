"""``fairseq-kerbs neighbours``: clusters of words with similar output embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairseq_kerbs.cli.models import Trained, read_model
from fairseq_kerbs.cli.output import show, write_files
from fairseq_kerbs.cli.parameters import (
    FILE,
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


@click.command(
    "neighbours",
    cls=ModelCommand,
    epilog=examples(
        "neighbours runs/toy/checkpoint_best.pt",
        "neighbours lin.pt --compare mixture.pt --data data/bin --similarity inner-product",
    ),
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@click.option("--split", metavar="SPLIT", default="test", help="split of the data")
@trust_option
@click.option(
    "--compare",
    type=FILE,
    metavar="OTHER",
    help="a second model of the same data, counted in the same clusters",
)
@click.option(
    "--similarity",
    type=click.Choice(["cosine", "inner-product"]),
    default="cosine",
    help="between output vectors: cosine after subtraction of their mean, or the inner product as "
    "in Gao et al.",
)
@click.option(
    "--word",
    "words",
    type=Several(),
    metavar="WORD...",
    default=(),
    help="show the clusters of these words",
)
@click.option(
    "--top",
    type=Whole(min=0),
    metavar="N",
    default=8,
    help="number of clusters to show without --word. 0 shows all",
)
@click.option(
    "--examples",
    "sentences",
    type=Whole(min=0),
    metavar="N",
    default=1,
    help="number of sentences per cluster",
)
@click.option(
    "--least",
    type=Whole(min=0),
    metavar="N",
    default=20,
    help="minimum number of occurrences of a word in the training data",
)
@click.option("--joined", is_flag=True, help="use whole words only, with BPE pieces joined")
@json_option
@csv_option
def neighbours(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    split: str,
    trust_checkpoint: bool,
    compare: Path | None,
    similarity: str,
    words: tuple[str, ...],
    top: int,
    sentences: int,
    least: int,
    joined: bool,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Clusters of words with similar output embeddings.

    Cluster words by the similarity of their output embeddings, or of their senses'. With --data:
    count how often a word of a cluster is predicted instead of another. With --compare: count where
    a second model predicts the right word instead, and the reverse (Table 4 of Gao et al.). Models
    of fairseq work too.
    """
    import torch

    from fairseq_kerbs.analysis import neighbours as analysis
    from fairseq_kerbs.analysis.words import (
        csv_of,
        is_always_piece,
        is_proper_entry,
        of_sentencepiece,
        word_numbers,
    )
    from fairseq_kerbs.checkpoints import model_layer

    if compare is not None and data is None:
        raise UserError("--compare needs --data, the text in which predictions are compared")
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint, any_model=True)
    entries = trained.dictionary
    layer = trained.layer or model_layer(trained.model, checkpoint)
    wanted = word_numbers(entries, words)
    sentencepiece = of_sentencepiece(entries.symbols)
    compared = [
        is_proper_entry(word, number, entries.nspecial)
        and entries.count[number] >= least
        and not (joined and is_always_piece(word, sentencepiece))
        for number, word in enumerate(entries.symbols)
    ]
    if sum(compared) < 2:
        raise UserError(
            f"--least {least}: fewer than two words occur as often in the training data; give a "
            "smaller number"
        )
    left_out = [entries[number] for number in wanted if not compared[number]]
    if left_out:
        pieces = ", or a piece of words, which --joined leaves out" if joined else ""
        raise UserError(
            f"--word: {', '.join(left_out)}: less than --least {least} times in the training data, "
            f"or a special symbol{pieces}; give a smaller --least, or another word"
        )
    text = None
    if trained.task is not None:
        text = _predictions(trained, split, joined)
    other_text = None
    if compare is not None:
        other = read_model(compare, data, trust=trust_checkpoint, any_model=True)
        other_text = _predictions(other, split, joined)
    clusters = analysis.find_clusters(layer, torch.tensor(compared), entries.count, similarity)
    result = analysis.find_neighbours(
        clusters,
        entries.symbols,
        text,
        other_text,
        wanted=wanted,
        top=top,
        examples=sentences,
    )
    write_files(json_file, csv_file, result.as_json(), csv_of(result.table(), 6))
    show(analysis.neighbours_as_text(result))


def _predictions(trained: Trained, split: str, joined: bool) -> Any:
    """The words of a split, without special symbols, and what a model predicts in their place."""
    from fairseq_kerbs.analysis.occurrences import Extras, read_text

    text = read_text(trained.model, trained.task, split, joined=joined, extras=Extras(guesses=True))
    return text._replace(tokens=text.tokens[text.tokens["entry"] >= trained.dictionary.nspecial])
