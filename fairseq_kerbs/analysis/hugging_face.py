"""Context vectors of words from a language model in the Hugging Face format (Figure 1).

The paper draws contexts of words "calculated from BERT", without saying more. Our choices:

- Masked model, such as BERT: the output vector of the last layer at the word. The model reads the
  whole sentence, with the word in it. For a word of several pieces it is the mean of their vectors.
- Causal model, such as GPT-2: the output vector of the last layer at the token before the word,
  which is the input of the output layer where the model predicts the word. For a word of several
  pieces it is the vector that predicts the first piece.

Models are read from a local folder, without code from that folder, without pickles, and without
access to a network.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import regex
import torch
from torch import Tensor
from torch.nn import Embedding
from torch.nn.utils.rnn import pad_sequence

from fairseq_kerbs.utils.errors import UserError, reason_of
from fairseq_kerbs.utils.files import iter_lines
from fairseq_kerbs.utils.progress import progress

_MAX_TOKENS = 4000  # per batch, and so per line
_LINES = 1000  # given to the tokenizer at a time
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_REMEDY = "give a masked or causal language model, such as BERT or GPT-2"


class LanguageModel(NamedTuple):
    """A language model of Hugging Face without its output layer, and its tokenizer."""

    folder: Path
    base: Any  # gives last_hidden_state [B, L, d]
    tokenizer: Any
    causal: bool
    longest: int  # maximum number of tokens of a line, special tokens included


def load_language_model(folder: Path) -> LanguageModel:
    """Load a masked or causal language model that ``save_pretrained`` wrote.

    Weights are read from safetensors only, in float32.

    Raises:
        UserError: the folder has no such model, is damaged, needs code of its own, or its tokenizer
            does not tell where in the text its pieces are.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no model in the Hugging Face format (config.json is missing); name a "
            "folder that save_pretrained wrote"
        )
    if (folder / "adapter_config.json").exists():
        # transformers would also read the model that this file names
        raise UserError(
            f"{folder} has an adapter (adapter_config.json); merge it into its model, and save that"
        )
    # huggingface_hub reads it when it is imported
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
        causal = _is_causal(config, folder)
        loader: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
        model, report = loader.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            # the folder's own choice could be a kernel from the hub
            attn_implementation="eager",
            output_loading_info=True,
            **local,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **local)
    except Exception as error:  # a damaged folder can cause any error
        raise UserError(
            f"{folder}: the model cannot be loaded ({reason_of(error)}); save it again by "
            "save_pretrained, with its tokenizer and model.safetensors"
        ) from error
    prefix = f"{model.base_model_prefix}."
    missing = sorted(name for name in report["missing_keys"] if name.startswith(prefix))
    if missing:  # transformers draws them at random
        raise UserError(
            f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; take another copy"
        )
    base = model.base_model
    if base is model:
        raise UserError(f"{folder} has a {type(model).__name__} without a base model; {_REMEDY}")
    if not tokenizer.is_fast:
        raise UserError(
            f"{folder}: the tokenizer does not tell where its pieces are in the text; save a fast "
            "one (tokenizer.json)"
        )
    base = base.float().eval()
    if causal:
        _check_causal(base, folder)
    return LanguageModel(folder, base, tokenizer, causal, _longest(base, tokenizer))


def _is_causal(config: Any, folder: Path) -> bool:
    """Whether a configuration is of a causal language model and not of a masked one."""
    from transformers.models.auto import modeling_auto

    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{folder} has an encoder-decoder model ({kind}); {_REMEDY}")
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(kind)
    if causal is None and masked is None:
        raise UserError(f"{folder} has no language model ({kind}); {_REMEDY}")
    if causal is None or masked is None:
        return masked is None
    # BERT and others exist as both
    return getattr(config, "is_decoder", False) or causal in (config.architectures or ())


@torch.no_grad()
def _check_causal(base: Any, folder: Path) -> None:
    """Raise a UserError if states depend on later tokens."""
    tokens = torch.tensor([[0, 1, 2], [0, 1, 3]])
    one, other = base(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
    if not torch.allclose(one[:2], other[:2], atol=1e-5):
        raise UserError(
            f"{folder} is saved as a causal language model, but reads the words that follow; set "
            "is_decoder in config.json, or save it as a masked language model"
        )


def _longest(base: Any, tokenizer: Any) -> int:
    """Maximum number of tokens of a line: that of model and tokenizer, at most 4000."""
    positions = getattr(base.config, "max_position_embeddings", None) or _MAX_TOKENS
    for name, table in base.named_modules():
        # RoBERTa numbers positions from the one after the index of padding
        if name.endswith("position_embeddings") and isinstance(table, Embedding):
            start = 0 if table.padding_idx is None else table.padding_idx + 1
            positions = min(positions, table.num_embeddings - start)
    return min(positions, tokenizer.model_max_length, _MAX_TOKENS)


class Occurrence(NamedTuple):
    """An occurrence of a word in a line of text."""

    line: int  # from 1
    tokens: list[int]  # of the line
    states: list[int]  # places in the line of the states whose mean is the context vector


class Occurrences(NamedTuple):
    """Occurrences of a word in a text."""

    kept: list[Occurrence]  # in the order of the text
    readable: int  # all whose context the model can compute
    left_out: int
    """Those beyond the maximum length, inside of a token, or at the start of a text for a causal
    model without a symbol for that."""


def find_occurrences(
    model: LanguageModel, text: Path, words: Sequence[str], most: int, seed: int
) -> dict[str, Occurrences]:
    """Occurrences of whole words in a text with one sentence per line, read once.

    If the tokenizer does not distinguish *Computer* and *computer*, neither does the search.

    Args:
        model: the language model.
        text: file in UTF-8, also .gz.
        words: the words.
        most: maximum number of occurrences of each word. They are drawn at random (Vitter's
            algorithm R), independently of the other words.
        seed: random seed.

    Raises:
        UserError: the text cannot be read, or the tokenizer does not know a word.
    """
    patterns = {word: _pattern(model, word) for word in words}
    draws = {word: Random(f"{seed} {word}") for word in words}
    kept: dict[str, list[Occurrence]] = {word: [] for word in words}
    readable = dict.fromkeys(words, 0)
    left_out = dict.fromkeys(words, 0)
    numbered = enumerate(progress(iter_lines(text), text.name, " lines"), start=1)
    with_word = (
        (number, line)
        for number, line in numbered
        if any(pattern.search(line) for pattern in patterns.values())
    )
    for number, line, tokens, offsets in _tokenized(model, with_word):
        for word, pattern in patterns.items():
            for match in pattern.finditer(line):
                states = _states(model, line, offsets, match.span())
                if not states:
                    left_out[word] += 1
                    continue
                readable[word] += 1
                occurrence = Occurrence(number, tokens, states)
                if len(kept[word]) < most:
                    kept[word].append(occurrence)
                elif (place := draws[word].randrange(readable[word])) < most:
                    kept[word][place] = occurrence
    return {
        word: Occurrences(
            sorted(kept[word], key=lambda one: (one.line, one.states)),
            readable[word],
            left_out[word],
        )
        for word in words
    }


def _pattern(model: LanguageModel, word: str) -> regex.Pattern[str]:
    """Pattern of a whole word, in any case if the tokenizer ignores case."""

    def pieces(form: str) -> list[int]:
        ids: list[int] = model.tokenizer(f" {form}", add_special_tokens=False)["input_ids"]
        return ids

    if not word.strip() or not pieces(word) or model.tokenizer.unk_token_id in pieces(word):
        raise UserError(
            f"--word: {word!r}: the tokenizer of {model.folder} does not know it; name another word"
        )
    same = pieces(word.lower()) == pieces(word.capitalize())
    before = r"(?<![\w\p{M}])"
    after = r"(?![\w\p{M}])"
    if _UNSPACED.search(word):  # where no space is beside words
        before = ""
        after = r"(?!\p{M})"
    pattern = before + regex.escape(word) + after
    return regex.compile(pattern, regex.IGNORECASE if same else regex.V0)


def _tokenized(
    model: LanguageModel, lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, str, list[int], list[tuple[int, int]]]]:
    """Number, text, tokens, and the span of each token in the text, for each line.

    A causal model gets its symbol for the beginning of text, if it has one, so that also the first
    word has a context. Lines are cut at the maximum length.
    """
    first = model.tokenizer.bos_token_id if model.causal else None
    begin: list[int] = [] if first is None else [first]
    lines = iter(lines)
    while chunk := list(islice(lines, _LINES)):
        encoded = model.tokenizer(
            [line for _, line in chunk],
            truncation=True,
            max_length=model.longest - len(begin),
            return_offsets_mapping=True,
        )
        for (number, line), tokens, offsets in zip(
            chunk, encoded["input_ids"], encoded["offset_mapping"]
        ):
            if tokens[: len(begin)] == begin:  # also without any
                yield number, line, tokens, offsets
            else:
                yield number, line, [*begin, *tokens], [(0, 0), *offsets]


def _states(
    model: LanguageModel, line: str, offsets: Sequence[tuple[int, int]], span: tuple[int, int]
) -> list[int]:
    """Places of the states of an occurrence, or none if it has no context vector."""
    start, end = span
    pieces = [at for at, (left, right) in enumerate(offsets) if left < end and right > start]
    # the span of a piece may include the space before the word
    if (
        not pieces
        or line[offsets[pieces[0]][0] : offsets[pieces[-1]][1]].strip() != line[start:end]
    ):
        return []
    if not model.causal:
        return pieces
    return [pieces[0] - 1] if pieces[0] else []


@torch.no_grad()
def context_vectors(model: LanguageModel, occurrences: Sequence[Occurrence]) -> Tensor:
    """Context vectors of occurrences, [n, d], float32 on the CPU.

    The model runs on the GPU, if there is one, and returns to the CPU at the end. A line with
    several occurrences is read once.

    Raises:
        UserError: the tokenizer has tokens that the model has not.
    """
    base = model.base
    words = base.get_input_embeddings().num_embeddings
    rows: dict[int, list[int]] = defaultdict(list)  # of the occurrences of each line
    tokens: dict[int, list[int]] = {}
    for row, occurrence in enumerate(occurrences):
        rows[occurrence.line].append(row)
        tokens[occurrence.line] = occurrence.tokens
    if any(max(ids) >= words for ids in tokens.values()):
        raise UserError(
            f"{model.folder}: the tokenizer has more entries than the model, {words}; save the "
            "tokenizer of this model"
        )
    vectors: list[Tensor] = [torch.empty(0)] * len(occurrences)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        base.to(device)
        for batch in progress(_batches(tokens), "contexts", " batches"):
            input_ids, mask = _padded([tokens[line] for line in batch], base.config)
            output = base(input_ids=input_ids.to(device), attention_mask=mask.to(device))
            for states, line in zip(output.last_hidden_state, batch):  # [L, d]
                for row in rows[line]:
                    vectors[row] = states[occurrences[row].states].mean(0).cpu()
    finally:
        base.cpu()
    return torch.stack(vectors)


def _batches(tokens: dict[int, list[int]]) -> list[list[int]]:
    """Lines in batches of similar length, with at most 4000 tokens each, padding included."""
    batches: list[list[int]] = []
    for line in sorted(tokens, key=lambda line: len(tokens[line])):
        if not batches or (len(batches[-1]) + 1) * len(tokens[line]) > _MAX_TOKENS:
            batches.append([])
        batches[-1].append(line)
    return batches


def _padded(lines: Sequence[Sequence[int]], config: Any) -> tuple[Tensor, Tensor]:
    """Tokens and mask of real tokens, [B, L] each."""
    # RoBERTa gives padding a position of its own
    padding = max(0, getattr(config, "pad_token_id", None) or 0)
    tokens = [torch.tensor(ids) for ids in lines]
    input_ids = pad_sequence(tokens, batch_first=True, padding_value=padding)
    mask = pad_sequence([torch.ones_like(ids) for ids in tokens], batch_first=True)
    return input_ids, mask
