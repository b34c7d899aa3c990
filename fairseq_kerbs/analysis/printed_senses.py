"""Add the most probable sense of each token to fairseq-generate's output.

A line ``K-<id>`` follows the ``P-`` line of each hypothesis. It has an entry for each token,
including the end of the sentence: ``word#sense:posterior``, with the number of the sense
(:func:`.number_senses`) and its posterior (Eq. 7). Names of senses of content words may follow
after a tab: ``bank#1=Ufer; light#2=hellblau``. Those of words that are split by form, not by
meaning, come last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_kerbs.analysis.words import joined_words, of_sentencepiece
from fairseq_kerbs.data.generated import read_generated
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.progress import progress

if TYPE_CHECKING:
    from fairseq_kerbs.analysis.names import SenseNames

BATCH = 64  # hypotheses of similar length per batch
LEAST_KNOWN = 0.5
"""Minimum share of words that the dictionary has. --replace-unk leaves some that it lacks."""
_LINE = re.compile(r"([SHDP])-(\d+)\t(.*)", re.DOTALL)


class ScoredTokens(NamedTuple):
    """Tokens of a hypothesis of fairseq-generate's output, which have scores in its P line."""

    line: int  # index of its P line
    source: list[str]
    words: list[str]


def with_senses(
    lines: Sequence[str], model: Any, task: Any, name: str, names: SenseNames | None = None
) -> list[str]:
    """Insert lines with senses into fairseq-generate's output, and remove earlier ones.

    Args:
        lines: the output.
        model, task: model of fairseq_kerbs that generated it, and fairseq's task.
        name: name of the file, for messages.
        names: names of senses.

    Raises:
        UserError: the output has no hypotheses, is truncated, or its tokens are not those of the
            model.
    """
    lines = [line for line in lines if not line.startswith("K-")]
    read_generated(lines, name)  # raises a UserError for a truncated output
    hypotheses = sorted(read_hypotheses(lines, name), key=lambda h: len(h.words))
    dictionary = task.target_dictionary
    words = [word for hypothesis in hypotheses for word in hypothesis.words]
    known = sum(word in dictionary.indices for word in words)
    if known < LEAST_KNOWN * len(words):
        raise UserError(
            f"{name} has {len(words) - known} of {len(words)} words that the model's dictionary "
            "lacks; give the output of this model"
        )
    numbers = {dictionary.index(word) for word in words}
    sentencepiece = of_sentencepiece(dictionary.symbols)
    labels: dict[str, str] = {}
    forms: set[str] = set()
    if names is not None:
        labels, forms = _labels(model.decoder.output, dictionary, names, numbers)
    added: dict[int, list[str]] = {}
    for start in progress(range(0, len(hypotheses), BATCH), "senses", " batches"):
        batch = hypotheses[start : start + BATCH]
        for hypothesis, entries in zip(batch, _entries(batch, model, task)):
            sentence = lines[hypothesis.line].partition("\t")[0][2:]
            senses = " ".join(f"{word}#{sense}:{share:.4f}" for word, sense, share in entries)
            _, places = joined_words([word for word, *_ in entries[:-1]], sentencepiece)
            single = [entries[at] for at in places if at is not None]
            whole = dict.fromkeys(f"{word}#{sense}" for word, sense, _ in single)
            named = sorted((sense for sense in whole if labels.get(sense)), key=forms.__contains__)
            text = "; ".join(f"{sense}={labels[sense]}" for sense in named)
            added[hypothesis.line] = [f"K-{sentence}\t{senses}\t{text}".rstrip()]
    return [text for number, line in enumerate(lines) for text in (line, *added.get(number, ()))]


def _labels(
    layer: OutputLayer, dictionary: Any, names: SenseNames, words: Iterable[int]
) -> tuple[dict[str, str], set[str]]:
    """Short names of senses such as ``bank#1``, of content words with several named senses.

    Returns:
        the names, and the senses of words that are split by form.
    """
    numbers = number_senses(layer.word_of_sense, layer.usage).tolist()
    labels: dict[str, str] = {}
    forms: set[str] = set()
    for word in words:
        by_row = {} if dictionary[word] in names.function_words else names.names(word)
        if len(by_row) > 1:
            of_word = {f"{dictionary[word]}#{numbers[row]}": n.short for row, n in by_row.items()}
            labels |= of_word
            if names.forms_of_one_word(word):
                forms |= of_word.keys()
    return labels, forms


def read_hypotheses(lines: Sequence[str], name: str) -> list[ScoredTokens]:
    """Hypotheses of fairseq-generate's output, in order.

    A UserError with the ``name`` of the output is raised if there are none, they are not tokens, or
    lines of a hypothesis do not follow each other.
    """
    hypotheses = []
    sources = {}
    words = [""]
    tokens = ""
    current = None  # number of the sentence of the last H line
    for number, match in enumerate(map(_LINE.fullmatch, lines)):
        kind = ""
        sentence = ""
        text = ""
        if match is not None:
            kind, sentence, text = match.groups()
        if kind in ("D", "P") and sentence != current:
            raise UserError(
                f"{name}, line {number + 1}: {kind}-{sentence} does not follow its H- line, as in "
                "sorted output; give fairseq-generate's unchanged output"
            )
        if kind == "S":
            sources[sentence] = text.split()
        elif kind == "H":
            current = sentence
            tokens = text.partition("\t")[2]
            words = tokens.split()
        elif kind == "D" and text.partition("\t")[2] != tokens:
            raise UserError(f"{name} was made with --bpe or --tokenizer; generate without these")
        elif kind == "P":
            if len(text.split()) != len(words) + 1:
                raise UserError(
                    f"{name}, line {number + 1} has {len(text.split())} scores for {len(words)} "
                    "words and the end of the sentence; generate without --remove-bpe"
                )
            hypotheses.append(ScoredTokens(number, sources.get(sentence, []), words))
            current = None
    if not hypotheses:
        raise UserError(
            f"{name} has no hypotheses with scores (H- and P- lines); give fairseq-generate's "
            "output, made without --quiet and --results-path"
        )
    return hypotheses


def _entries(
    batch: list[ScoredTokens], model: Any, task: Any
) -> list[list[tuple[str, int, float]]]:
    """Word, number of the sense and posterior of each token of each hypothesis."""
    dictionary = task.target_dictionary
    rows = [_numbers(hypothesis.words, dictionary) for hypothesis in batch]
    source = None
    start = dictionary.eos()
    if isinstance(model, FairseqLanguageModel):
        start = dictionary.bos() if task.args.add_bos_token else start
    else:
        sources = [_numbers(hypothesis.source, task.source_dictionary) for hypothesis in batch]
        padding = task.source_dictionary.pad()
        source = collate_tokens(sources, padding, left_pad=task.cfg.left_pad_source)
    senses = hypothesis_senses(model, source, rows, start, dictionary.pad())
    return [
        [(dictionary[token], *sense) for token, sense in zip(row.tolist(), of_row)]
        for row, of_row in zip(rows, senses)
    ]


def _numbers(words: list[str], dictionary: Any) -> Tensor:
    return torch.tensor([*map(dictionary.index, words), dictionary.eos()])


@torch.no_grad()
def hypothesis_senses(
    model: Any, source: Tensor | None, hypotheses: list[Tensor], start: int, padding: int
) -> list[list[tuple[int, float]]]:
    """Most probable sense of each token, from the contexts of step-by-step decoding.

    Args:
        model: a model of fairseq_kerbs.
        source: padded source tokens [batch, src_len], or None for a language model.
        hypotheses: target tokens of each sentence, [len].
        start: first input token of the decoder.
        padding: index of the padding symbol.

    Returns:
        number and posterior (Eq. 7) of the sense of each token of each hypothesis.
    """
    words = torch.nn.utils.rnn.pad_sequence(hypotheses, True, padding)  # [batch, len]
    previous = torch.nn.functional.pad(words[:, :-1], (1, 0), value=start)
    encoded: dict[str, Any] = {}
    if source is not None:
        lengths, order = source.ne(padding).sum(1).sort(descending=True)  # fairseq's LSTM needs it
        sentences = model.encoder(source[order], src_lengths=lengths)
        encoded["encoder_out"] = model.encoder.reorder_encoder_out(sentences, order.argsort())
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
