"""Senses for TensorBoard's embedding projector: vectors, and words beside them.

The three files open with ``tensorboard --logdir FOLDER``; `vectors.tsv` and `metadata.tsv` load in
any other projector, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq_kerbs.analysis.page_data import page_words
from fairseq_kerbs.corpora.files import atomic_write
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.output_layers import OutputLayer

VECTORS, METADATA, CONFIG = "vectors.tsv", "metadata.tsv", "projector_config.pbtxt"
_BREAKS = str.maketrans("\t\n\r", "   ")  # what would end a cell


def write_projector(
    folder: Path, layer: OutputLayer, symbols: Sequence[str], special: int
) -> list[Path]:
    """Write all senses of all words, the most used sense of a word first.

    Args:
        folder: where to; it is made where it is missing.
        layer: output layer.
        symbols: [V] entries of the dictionary.
        special: entries at its beginning that are no words; they are left out.

    Returns:
        the files.

    Raises:
        UserError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--projector: {folder} is no folder")
    words = page_words(layer, symbols, special)
    theta, usage = layer.theta.tolist(), layer.usage.tolist()
    with atomic_write(folder / VECTORS) as stream:
        for own in words.senses:
            for row in layer.weight[own].tolist():
                stream.write("\t".join(f"{value:.6g}" for value in row) + "\n")
    with atomic_write(folder / METADATA) as stream:
        stream.write("word\tsense\ttheta\tusage\tsenses\n")
        for word, own in zip(words.symbols, words.senses, strict=True):
            total = sum(usage[sense] for sense in own) or 1.0
            for sense in own:
                figures = (sense, f"{theta[sense]:.6g}", f"{usage[sense] / total:.6g}", len(own))
                cells = [word.translate(_BREAKS), *(str(figure) for figure in figures)]
                stream.write("\t".join(cells) + "\n")
    with atomic_write(folder / CONFIG) as stream:
        stream.write(
            f'embeddings {{\n  tensor_name: "senses"\n  tensor_path: "{VECTORS}"\n'
            f'  metadata_path: "{METADATA}"\n}}\n'
        )
    return [folder / name for name in (VECTORS, METADATA, CONFIG)]
