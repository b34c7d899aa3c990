"""Which sense each token of a generated text was predicted by: a pass over finished hypotheses.

In fairseq-generate's output a line ``K-<id>`` follows the ``P-`` line of every hypothesis, with one
entry for each of its tokens, the end of the sentence included: ``word#sense:posterior``, with the
number of the sense within its word (`number_senses`) and the posterior of Eq. 7. Behind a tab may
stand the names of the senses of content words that have several: ``bank#1=Ufer; light#2=hellblau``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_kerbs.analysis.words import BPE_MARK
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import progress

if TYPE_CHECKING:
    from fairseq_kerbs.analysis.names import SenseNames

BATCH = 64  # hypotheses at a time, of about the same length
_LINE = re.compile(r"([SHDP])-(\d+)\t(.*)", re.DOTALL)


class Hypothesis(NamedTuple):
    """A hypothesis of fairseq-generate's output."""

    line: int  # number of its P line, from 0
    source: list[str]
    words: list[str]


class Entry(NamedTuple):
    """A token of a hypothesis."""

    word: str
    sense: int  # number of the most probable one
    posterior: float


def with_senses(
    lines: Sequence[str], model: Any, task: Any, name: str, names: SenseNames | None = None
) -> list[str]:
    """The lines of fairseq-generate's output, those of senses among them; earlier ones give way.

    Raises a UserError, which has the ``name`` of the output, if it has no hypotheses, or its words
    are not those that the model has read and written.
    """
    lines = [line for line in lines if not line.startswith("K-")]
    hypotheses = sorted(read_hypotheses(lines, name), key=lambda each: len(each.words))
    label = _labels(model.decoder.output, task.target_dictionary, names)
    added: dict[int, str] = {}
    for start in progress(range(0, len(hypotheses), BATCH), "senses", " batches"):
        batch = hypotheses[start : start + BATCH]
        for hypothesis, entries in zip(batch, _entries(batch, model, task)):
            sentence = lines[hypothesis.line].partition("\t")[0][2:]
            shown = " ".join(f"{word}#{sense}:{share:.4f}" for word, sense, share in entries)
            before = ["", *(entry.word for entry in entries)]
            whole = dict.fromkeys(  # an entry behind a marked one ends another word
                entry[:2] for entry, word in zip(entries, before) if not word.endswith(BPE_MARK)
            )
            named = [(f"{word}#{sense}", label(word).get(sense)) for word, sense in whole]
            text = "; ".join(f"{sense}={short}" for sense, short in named if short)
            added[hypothesis.line] = f"K-{sentence}\t{shown}\t{text}".rstrip()
    return [
        text
        for number, line in enumerate(lines)
        for text in ([line, added[number]] if number in added else [line])
    ]


def _labels(layer: OutputLayer, dictionary: Any, names: SenseNames | None) -> Any:
    """A function of a word: short names of its senses by number, if it is a content word that has
    several."""
    numbers = number_senses(layer.word_of_sense, layer.usage).tolist()

    @functools.cache
    def label(word: str) -> dict[int, str]:
        if names is None or word not in dictionary.indices:
            return {}
        from fairseq_kerbs.analysis.names import is_function_word

        if is_function_word(word):
            return {}
        by_row = names.names(dictionary.indices[word])
        short = {numbers[row]: sense.short for row, sense in by_row.items()}
        return short if len(short) > 1 else {}

    return label


def read_hypotheses(lines: Sequence[str], name: str) -> list[Hypothesis]:
    """All hypotheses of an output, in its order."""
    hypotheses, sources, words, shown = [], {}, [""], ""
    for number, match in enumerate(map(_LINE.fullmatch, lines)):
        kind, sentence, text = match.groups() if match else ("", "", "")
        if kind == "S":
            sources[sentence] = text.split()
        elif kind == "H":
            shown = text.partition("\t")[2]
            words = shown.split()
        elif kind == "D" and text.partition("\t")[2] != shown:
            raise UserError(f"{name} was made with --bpe or --tokenizer; generate without these")
        elif kind == "P":
            if len(text.split()) != len(words) + 1:
                raise UserError(
                    f"{name}, line {number + 1} has {len(text.split())} scores for {len(words)} "
                    "words and the end of the sentence; generate without --remove-bpe"
                )
            hypotheses.append(Hypothesis(number, sources.get(sentence, []), words))
    if not hypotheses:
        raise UserError(
            f"{name} has no hypotheses with scores (H- and P- lines); give fairseq-generate's "
            "output, made without --quiet and --results-path"
        )
    return hypotheses


def _entries(batch: list[Hypothesis], model: Any, task: Any) -> list[list[Entry]]:
    """The tokens of each hypothesis."""
    read, written = task.source_dictionary, task.target_dictionary
    rows = [_numbers(each.words, written) for each in batch]
    source, start = None, written.eos()
    if isinstance(model, FairseqLanguageModel):
        start = written.bos() if task.args.add_bos_token else start
    else:
        sources = [_numbers(each.source, read) for each in batch]
        source = collate_tokens(sources, read.pad(), left_pad=task.cfg.left_pad_source)
    senses = hypothesis_senses(model, source, rows, start, written.pad())
    return [
        [Entry(written[token], *sense) for token, sense in zip(row.tolist(), of_row)]
        for row, of_row in zip(rows, senses)
    ]


def _numbers(words: list[str], dictionary: Any) -> Tensor:
    return torch.tensor([*map(dictionary.index, words), dictionary.eos()])


@torch.no_grad()
def hypothesis_senses(
    model: Any, source: Tensor | None, hypotheses: list[Tensor], start: int, padding: int
) -> list[list[tuple[int, float]]]:
    """The number of the most probable sense of each token, and its posterior (Eq. 7), of one
    hypothesis [len] for each row of a padded ``source`` [batch, src_len], None for a language
    model: contexts are those of decoding step by step, from the token ``start``."""
    words = torch.nn.utils.rnn.pad_sequence(hypotheses, True, padding)  # [batch, len]
    previous = torch.nn.functional.pad(words[:, :-1], (1, 0), value=start)
    encoded: dict[str, Any] = {}
    if source is not None:
        lengths = source.ne(padding).sum(1)
        encoded["encoder_out"] = model.encoder(source, src_lengths=lengths)
    state: dict[str, Any] = {}
    contexts = [
        model.decoder(previous[:, :step], incremental_state=state, **encoded)[0][:, -1]
        for step in range(1, words.shape[1] + 1)
    ]
    layer: OutputLayer = model.decoder.output
    posterior = layer.posterior(layer.look_up(words), torch.stack(contexts, 1))
    share, slot = posterior.max(-1)  # [batch, len]
    sense = layer.table.senses[words].gather(-1, slot.unsqueeze(-1)).squeeze(-1)
    number = number_senses(layer.word_of_sense, layer.usage)[sense]
    return [
        list(zip(number[i, : len(row)].tolist(), share[i, : len(row)].tolist()))
        for i, row in enumerate(hypotheses)
    ]
