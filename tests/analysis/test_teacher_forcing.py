"""The pass over a split or over generated text: words, senses, contexts and predictions."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_kerbs.analysis import teacher_forcing
from fairseq_kerbs.analysis.printed_senses import hypothesis_senses, read_hypotheses
from fairseq_kerbs.analysis.teacher_forcing import batches, contexts_of, read_text, sample_of
from fairseq_kerbs.analysis.words import joined_words, sense_numbers, sense_of
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained
from tests.helpers import commands
from tests.helpers.cli import Patch
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.reference import naive_logits


def test_subwords_are_joined_and_only_whole_tokens_have_a_place() -> None:
    pieces = ["the", "ban@@", "k", "of@@", "f", "bank", "un@@"]
    assert joined_words(pieces) == (["the", "bank", "off", "bank", "un"], [0, None, None, 5, None])


@pytest.mark.parametrize("left_pad_target", [False, True])
def test_senses_are_those_of_the_likelihood(trained: Trained, left_pad_target: bool) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    task.cfg.left_pad_target = left_pad_target
    layer, symbols = model.decoder.output, task.target_dictionary.symbols
    layer.theta.data.normal_(std=4.0)
    text = read_text(model, task, "test")
    seen, tokens = 0, list(text.tokens.itertuples(index=False, name=None))
    for batch in batches(task, "test"):
        with torch.no_grad():
            features, _ = model(**batch["net_input"])
            _, _, posteriors = layer.nll_with_posteriors(features, batch["target"], ignore_index=1)
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


def test_a_text_is_thinned_but_its_sample_is_not(trained: Trained, monkeypatch: Patch) -> None:
    monkeypatch.setattr(teacher_forcing, "_MAX_TOKENS", 100)
    model, task = load_model_and_task(trained.kerbs, trained.data)
    the = task.target_dictionary.index("the")
    whole = read_text(model, task, "test", words=[the])
    assert len(whole.contexts) == (whole.tokens["entry"] == the).sum() > 10
    sample = sample_of([the], len(task.target_dictionary), whole.contexts.shape[1], 1000)
    thin = read_text(model, task, "test", most=150, words=[the], sample=sample)
    assert 0 < len(thin.words) < len(whole.words) / 2
    assert thin.words == [whole.words[number] for number in thin.number]
    sums = sample.contexts(the).sum(0), whole.contexts.sum(0)
    torch.testing.assert_close(*sums, rtol=0.01, atol=0.05)
    assert read_text(model, task, "test", most=150).number == thin.number
    lengths = task.dataset("test").tgt_sizes
    task.cfg.max_target_positions = most = int(np.median(lengths))  # longer ones never trained
    assert 0 < len(read_text(model, task, "test").words) == (lengths <= most).sum() < len(lengths)


def test_contexts_of_fairseqs_own_model_are_its_features(trained: Trained) -> None:
    model, task = load_model_and_task(trained.softmax, trained.data, any_model=True)
    word = task.target_dictionary.index("the")
    found = contexts_of(model, task, "test", [word], 1000)[word]
    test, expected = task.dataset("test"), []
    for index in range(len(test)):
        batch = test.collater([test[index]])
        with torch.no_grad():
            features, _ = model.extract_features(**batch["net_input"])
        expected.append(features[batch["target"] == word])
    assert len(found) == sum(map(len, expected)) > 5
    sums = [[each.sum(0), each.norm(dim=1).sort()[0]] for each in (found, torch.cat(expected))]
    torch.testing.assert_close(*sums, rtol=2e-3, atol=2e-2)
    assert "output_layer" not in model.decoder.__dict__  # as it was


@pytest.mark.parametrize("kind", ["kerbs", "softmax"])
def test_predictions_are_the_models_own(trained: Trained, kind: str, monkeypatch: Patch) -> None:
    model, task = load_model_and_task(getattr(trained, kind), trained.data, any_model=True)
    words, test = task.target_dictionary, task.dataset
    monkeypatch.setattr(teacher_forcing, "SCORES", 7 * len(words))
    text = read_text(model, task, "test", joined=False, guesses=True)
    rows = text.tokens.set_index(["line", "place"])
    for index in range(len(test("test"))):
        batch = test("test").collater([test("test")[index]])
        with torch.no_grad():
            scores = model.get_normalized_probs(model(**batch["net_input"]), log_probs=False)[0]
        for place, word in enumerate(batch["target"][0].tolist()[:-1]):
            row = rows.loc[index, place]
            assert row["entry"] == word
            assert text.words[index][place] == words[word]
            expected = [float(scores[place, word]), float(scores[place].max())]
            assert [row["probability"], row["guessed"]] == pytest.approx(expected, rel=1e-3)
            assert float(scores[place, int(row["guess"])]) == pytest.approx(expected[1], rel=1e-3)
    joined = read_text(model, task, "test", guesses=True)
    assert 0 < len(joined.tokens) < len(rows)
    for line, place, word in joined.tokens[["line", "place", "entry"]].itertuples(index=False):
        assert joined.words[line][place] == words[word]
    assert not any("@@" in word for line in joined.words for word in line)


def check(model: Any, source: torch.Tensor, tokens: list[int], senses: Any) -> int:
    """Compare senses with those by the recursion of Eq. 6; how many of them are not certain."""
    layer, uncertain = model.decoder.output, 0
    model.decoder.passes = -1
    contexts = model(source, source.ne(1).sum(1), torch.tensor([[2, *tokens[:-1]]]))[0][0].double()
    logits = naive_logits(contexts, layer.weight.double(), layer.theta.double())  # [len, M]
    for token, (sense, share), joint in zip(tokens, senses, logits, strict=True):
        own = layer.inventory.word_of_sense.eq(token).nonzero().flatten().tolist()
        posterior = joint[own].softmax(0).tolist()
        assert share == pytest.approx(max(posterior), abs=1e-4)
        found = posterior[own.index(sense_numbers(layer, token)[sense - 1])]
        assert found == pytest.approx(max(posterior), abs=1e-4)
        uncertain += len(own) > 1 and share < 0.999
    return uncertain


@pytest.mark.parametrize("name", ["transformer", "lstm", "fairseq_lstm"])
@pytest.mark.parametrize("beam", [1, 3])
def test_senses_are_those_of_the_sequential_recursion(name: str, beam: int) -> None:
    """Of sentences in an order by length that fairseq's LSTM does not read."""
    model, batch, words = (
        make_model(name),
        make_batch((7, 6, 5, 4, 3)),
        make_task().target_dictionary,
    )
    generator = SequenceGenerator([model], words, beam_size=beam, max_len_b=7)
    uncertain, source = 0, batch["net_input"]["src_tokens"]
    for rank in range(beam):
        rows = [hypotheses[rank]["tokens"] for hypotheses in generator.generate([model], batch)]
        senses = hypothesis_senses(model, source.flip(0), rows[::-1], 2, 1)[::-1]
        with torch.no_grad():
            for row, tokens in enumerate(rows):
                sentence = source[row : row + 1, source[row].ne(1)]
                uncertain += check(model, sentence, tokens.tolist(), senses[row])
    assert uncertain > 3  # otherwise nothing was tested


def test_a_plain_softmax_has_one_sense_a_word() -> None:
    model, batch = make_model("lstm", output_layer="softmax"), make_batch()
    rows = [torch.tensor([5, 6, 2])] * len(batch["target"])
    senses = hypothesis_senses(model, batch["net_input"]["src_tokens"], rows, 2, 1)
    assert senses == [[(1, 1.0)] * 3] * len(rows)


def test_every_hypothesis_has_its_senses(trained: Trained, tmp_path: Path) -> None:
    """Of fairseq-generate's output, several of a sentence, by the command; a second time too."""
    data, model = trained.data, trained.kerbs
    flags = ["--path", model, "--gen-subset", "valid", "--beam", 3, "--nbest", 2, "--cpu"]
    generated, with_senses = tmp_path / "generated", tmp_path / "senses"
    flags += ["--max-len-b", 9, *commands.USER_DIR]
    generated.write_text(commands.run("fairseq-generate", data, *flags))
    common = ["print-senses", str(model), "--data", str(data)]
    assert main([*common, str(generated), "-o", str(with_senses)]) == 0
    lines = with_senses.read_text().splitlines()
    assert [line for line in lines if line[:2] != "K-"] == generated.read_text().splitlines()
    loaded, task = load_model_and_task(model, data)
    source, target = task.source_dictionary, task.target_dictionary
    scored = [number for number, line in enumerate(lines) if line.startswith("P-")]
    assert len(scored) == 20
    read: Any = {line.split("\t")[0]: line.split("\t")[1] for line in lines if line[:2] == "S-"}
    for number in scored:
        identity, entries, *_ = lines[number + 1].split("\t")
        assert identity == f"K-{lines[number].split()[0][2:]}"
        parts = re.findall(r"(\S+)#(\d):([01]\.\d{4})(?: |$)", entries)
        words, numbers, shares = zip(*parts, strict=True)
        assert (*lines[number - 1].split("\t")[2].split(), "</s>") == words
        sentence = source.encode_line(read[f"S-{identity[2:]}"], add_if_not_exist=False).long()
        found = zip(map(int, numbers), map(float, shares), strict=True)
        with torch.no_grad():
            check(loaded, sentence[None], [*map(target.index, words)], found)
    assert main([*common, str(with_senses), "-o", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == with_senses.read_bytes()


def test_what_the_pass_cannot_read_is_said() -> None:
    whole = ["S-0\ta b", "H-0\t-1\tx@@ y", "D-0\t-1\tx@@ y", "P-0\t-1 -1 -1"]
    (hypothesis,) = read_hypotheses(whole, "out")
    assert hypothesis == (3, ["a", "b"], ["x@@", "y"])
    for lines, sentence in (
        ([*whole[:3], "P-0\t-1 -1 -1 -1"], "out, line 4 has 4 scores for 2 words .*--remove-bpe"),
        ([*whole[:2], "D-0\t-1\txy", whole[3]], "out was made with --bpe or --tokenizer"),
        (["Generate test with beam=5: BLEU4"], "out has no hypotheses with scores .*--quiet"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_hypotheses(lines, "out")
