"""Senses of the tokens of fairseq-generate's output."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_kerbs.analysis.printed_senses import hypothesis_senses, read_hypotheses
from fairseq_kerbs.analysis.words import sense_numbers
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained
from tests.helpers import commands
from tests.helpers.cli import Capsys
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.reference import naive_logits


def check(model: Any, source: torch.Tensor, tokens: list[int], senses: Any) -> int:
    """Compare senses with those by the recursion of Eq. 6; how many of them are not certain."""
    layer = model.decoder.output
    uncertain = 0
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
    model = make_model(name)
    batch = make_batch((7, 6, 5, 4, 3))
    words = make_task().target_dictionary
    generator = SequenceGenerator([model], words, beam_size=beam, max_len_b=7)
    source = batch["net_input"]["src_tokens"]
    uncertain = 0
    for rank in range(beam):
        rows = [hypotheses[rank]["tokens"] for hypotheses in generator.generate([model], batch)]
        senses = hypothesis_senses(model, source.flip(0), rows[::-1], 2, 1)[::-1]
        with torch.no_grad():
            for row, tokens in enumerate(rows):
                sentence = source[row : row + 1, source[row].ne(1)]
                uncertain += check(model, sentence, tokens.tolist(), senses[row])
    assert uncertain > 3  # otherwise nothing was tested


def test_a_plain_softmax_has_one_sense_a_word() -> None:
    model = make_model("lstm", output_layer="softmax")
    batch = make_batch()
    rows = [torch.tensor([5, 6, 2])] * len(batch["target"])
    senses = hypothesis_senses(model, batch["net_input"]["src_tokens"], rows, 2, 1)
    assert senses == [[(1, 1.0)] * 3] * len(rows)


def test_every_hypothesis_has_its_senses(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    """Of fairseq-generate's output, several of a sentence, by the command; a second time too."""
    data = trained.data
    model = trained.kerbs
    flags = ["--path", model, "--gen-subset", "valid", "--beam", 3, "--nbest", 2, "--cpu"]
    generated = tmp_path / "generated"
    with_senses = tmp_path / "senses"
    flags += ["--max-len-b", 9, *commands.USER_DIR]
    generated.write_text(commands.run("fairseq-generate", data, *flags))
    common = ["print-senses", str(model), "--data", str(data)]
    assert main([*common, str(generated), "-o", str(with_senses)]) == 0
    lines = with_senses.read_text().splitlines()
    assert [line for line in lines if line[:2] != "K-"] == generated.read_text().splitlines()
    loaded, task = load_model_and_task(model, data)
    source = task.source_dictionary
    target = task.target_dictionary
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
    nameless = tmp_path / "bin"
    shutil.copytree(data, nameless, ignore=shutil.ignore_patterns("train.*"))
    capsys.readouterr()
    named = ["print-senses", str(model), str(generated), "--data", str(nameless), "--names"]
    assert main(named) == 2
    assert "bin has no binarized training text, by which senses" in capsys.readouterr().err
    text = generated.read_text()
    cut = text[: text.rindex("S-")]
    other = re.sub(r"(?m)^([HD]-\d+\t\S+\t)(.*)$", lambda line: line[1] + line[2].upper(), text)
    for content, sentence in ((cut, "is truncated"), (other, "words that the model's dictionary")):
        generated.write_text(content)
        assert main([*common, str(generated), "-o", str(tmp_path / "none")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


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
