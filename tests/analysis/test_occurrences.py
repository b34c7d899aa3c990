"""Words of a split by one teacher-forced pass: places, senses, contexts and predictions."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fairseq_kerbs.analysis import occurrences
from fairseq_kerbs.analysis.function_words import FunctionWords
from fairseq_kerbs.analysis.occurrences import Extras, read_text
from fairseq_kerbs.analysis.words import (
    joined_words,
    of_sentencepiece,
    part_of_a_word,
    sense_numbers,
    sense_of,
    word_of_piece,
)
from fairseq_kerbs.checkpoints import contexts as passes
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.checkpoints.contexts import batches, contexts_of, sample_of
from tests.analysis.conftest import Trained
from tests.helpers.cli import Patch


def test_subwords_are_joined_and_only_whole_tokens_have_a_place() -> None:
    pieces = ["the", "ban@@", "k", "of@@", "f", "bank", "un@@"]
    assert joined_words(pieces) == (["the", "bank", "off", "bank", "un"], [0, None, None, 5, None])


@pytest.mark.parametrize("left_pad_target", [False, True])
def test_senses_are_those_of_the_likelihood(trained: Trained, left_pad_target: bool) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    task.cfg.left_pad_target = left_pad_target
    layer = model.decoder.output
    symbols = task.target_dictionary.symbols
    layer.theta.data.normal_(std=4.0)
    text = read_text(model, task, "test")
    tokens = list(text.tokens.itertuples(index=False, name=None))
    seen = 0
    for batch in batches(task, "test"):
        with torch.no_grad():
            features, _ = model(**batch["net_input"])
            _, _, posteriors = layer.nll_with_probabilities(
                features, batch["target"], ignore_index=1
            )
        joint = posteriors.sense_prob.view(*batch["target"].shape, -1)
        for row, number in enumerate(batch["id"].tolist()):
            columns = batch["target"][row].ne(1).nonzero()[:-1, 0].tolist()  # the end is no word
            pieces = [symbols[batch["target"][row, column]] for column in columns]
            words, positions = joined_words(pieces)
            assert text.words[number] == words
            whole = [place for place, at in enumerate(positions) if at is not None]
            found = sorted(token[1:] for token in tokens if token[0] == number)
            assert [place for place, *_ in found] == whole
            for place, entry, sense, posterior in found:
                column = columns[positions[place] or 0]
                share = joint[row, column] / joint[row, column].sum()
                assert entry == batch["target"][row, column]
                assert posterior == pytest.approx(float(share.max()), rel=1e-4)
                assert layer.table.senses[entry][share.argmax()] == sense
                seen += 1
    assert seen == len(tokens) > 100
    for word in map(task.target_dictionary.index, ("the", ".")):
        rows = np.array(sense_numbers(layer, word))
        vectors = contexts_of(model, task, "test", [word, 1], 1000)
        senses = rows[sense_of(layer, word, vectors.pop(word)).numpy()]
        assert vectors == {}  # padding is no word
        assert sorted(senses) == sorted(text.tokens["sense"][text.tokens["entry"] == word])
        assert len(contexts_of(model, task, "test", [word], 7)[word]) == 7


def test_pieces_of_sentencepiece_are_joined() -> None:
    pieces = ["▁the", "▁ban", "k", "▁", "我", "▁off"]
    assert joined_words(pieces) == (["the", "bank", "我", "off"], [0, None, None, 5])
    assert joined_words(["k", "▁of"]) == (["k", "of"], [None, 1])
    assert joined_words(["▁"]) == (["▁"], [0])
    assert joined_words([]) == ([], [])
    # a text with this character, in pieces of BPE
    assert joined_words(["a", "▁", "ban@@", "k"]) == (["a", "▁", "bank"], [0, 1, None])
    # a word to be filled in, by the whole dictionary, of which few entries have the mark
    blank = ["▁▁▁", "is", "a", "bank"]
    assert not of_sentencepiece([*blank, *(f"w{number}" for number in range(20))])
    assert joined_words(blank, sentencepiece=False) == (blank, [0, 1, 2, 3])
    assert word_of_piece(blank, sentencepiece=False) == [0, 1, 2, 3]
    symbols = ["▁the", "▁ban", "k", "<unk>", "</s>"]
    target = torch.tensor([[0, 1, 2, 2, 0, 4], [1, 3, 2, 0, 1, 4]])
    expected = [[0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]]
    assert part_of_a_word(target, symbols).int().tolist() == expected
    english = FunctionWords([], "en")
    assert "▁the" in english
    assert "▁bank" not in english


def test_pieces_of_words_are_those_that_joining_joins() -> None:
    symbols = ["the", "ban@@", "k", "off@@", "</s>"]
    drawn = torch.randint(4, (40, 9), generator=torch.Generator().manual_seed(2))
    target = torch.cat([drawn, torch.full((40, 1), 4)], 1)
    mask = part_of_a_word(target, symbols)
    for row, found in zip(drawn.tolist(), mask.tolist()):
        if row[-1] not in (1, 3):  # else the end of the sentence would be a piece
            _, positions = joined_words([symbols[entry] for entry in row])
            whole = {position for position in positions if position is not None}
            assert {column for column in range(9) if not found[column]} == whole


def test_contexts_can_be_of_some_occurrences_alone(trained: Trained) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    the = task.target_dictionary.index("the")

    def even_columns(target: Tensor) -> Tensor:
        mask = torch.zeros_like(target, dtype=torch.bool)
        mask[:, ::2] = True
        return mask

    target = [row for batch in batches(task, "test") for row in batch["target"].tolist()]
    first = sum(row[::2].count(the) for row in target)
    every = sum(row.count(the) for row in target)
    assert 0 < first < every
    assert len(contexts_of(model, task, "test", [the], 1000, even_columns)[the]) == first
    assert len(contexts_of(model, task, "test", [the], 1000)[the]) == every
    assert len(contexts_of(model, task, "test", [the], first - 1, even_columns)[the]) == first - 1


def test_a_text_is_thinned_but_its_sample_is_not(trained: Trained, monkeypatch: Patch) -> None:
    monkeypatch.setattr(passes, "TOKENS_PER_BATCH", 100)
    model, task = load_model_and_task(trained.kerbs, trained.data)
    the = task.target_dictionary.index("the")
    whole = read_text(model, task, "test", extras=Extras(words=[the]))
    assert len(whole.contexts) == (whole.tokens["entry"] == the).sum() > 10
    sample = sample_of([the], len(task.target_dictionary), whole.contexts.shape[1], 1000)
    thin = read_text(model, task, "test", most=150, extras=Extras(words=[the], sample=sample))
    assert 0 < len(thin.words) < len(whole.words) / 2
    assert thin.words == [whole.words[number] for number in thin.number]
    sums = sample.contexts(the).sum(0), whole.contexts.sum(0)
    torch.testing.assert_close(*sums, rtol=0.01, atol=0.05)
    assert read_text(model, task, "test", most=150).number == thin.number
    lengths = task.dataset("test").tgt_sizes
    task.cfg.max_target_positions = most = int(np.median(lengths))  # longer ones never trained
    assert 0 < len(read_text(model, task, "test").words) == (lengths <= most).sum() < len(lengths)


@pytest.mark.parametrize("kind", ["kerbs", "softmax"])
def test_predictions_are_the_models_own(trained: Trained, kind: str, monkeypatch: Patch) -> None:
    model, task = load_model_and_task(getattr(trained, kind), trained.data, any_model=True)
    words = task.target_dictionary
    monkeypatch.setattr(occurrences, "MOST_LOG_PROBS", 7 * len(words))
    text = read_text(model, task, "test", joined=False, extras=Extras(guesses=True))
    rows = text.tokens.set_index(["line", "place"])
    split = task.dataset("test")
    for index in range(len(split)):
        batch = split.collater([split[index]])
        with torch.no_grad():
            scores = model.get_normalized_probs(model(**batch["net_input"]), log_probs=False)[0]
        for place, word in enumerate(batch["target"][0].tolist()[:-1]):
            row = rows.loc[index, place]
            assert row["entry"] == word
            assert text.words[index][place] == words[word]
            expected = [float(scores[place, word]), float(scores[place].max())]
            assert [row["probability"], row["guessed"]] == pytest.approx(expected, rel=1e-3)
            assert float(scores[place, int(row["guess"])]) == pytest.approx(expected[1], rel=1e-3)
    joined = read_text(model, task, "test", extras=Extras(guesses=True))
    assert 0 < len(joined.tokens) < len(rows)
    for line, place, word in joined.tokens[["line", "place", "entry"]].itertuples(index=False):
        assert joined.words[line][place] == words[word]
    assert not any("@@" in word for line in joined.words for word in line)
