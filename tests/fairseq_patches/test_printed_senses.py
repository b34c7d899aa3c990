"""``fairseq-generate --print-senses``: the senses that predicted each token of a hypothesis."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_kerbs.fairseq_patches.printed_senses import SenseLines, hypothesis_senses
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, find_program
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.reference import naive_logits
from tests.helpers.tiny_checkpoint import fairseq_train, make_work


def posteriors_step_by_step(
    model: Any, batch: Any, row: int, tokens: list[int]
) -> list[list[float]]:
    """Posterior of every sense of each token, by a decoder that is fed one token at a time."""
    net_input = batch["net_input"]
    source = net_input["src_tokens"][row : row + 1]
    encoded = model.encoder(source, src_lengths=source.ne(1).sum(1))
    layer, found = model.decoder.output, []
    state: dict[str, Any] = {}
    for place, token in enumerate(tokens):
        previous = torch.tensor([[2, *tokens[:place]]])
        context = model.decoder(previous, encoded, incremental_state=state)[0][0, -1:]
        joint = naive_logits(context.double(), layer.weight.double(), layer.theta.double())[
            0
        ]  # [M]
        own = (layer.inventory.word_of_sense == token).nonzero().flatten()
        found.append(joint[own].softmax(0).tolist())
    return found


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_senses_are_those_of_decoding_step_by_step(name: str) -> None:
    model, batch = make_model(name), make_batch()
    generator = SequenceGenerator([model], make_task().target_dictionary, beam_size=3, max_len_b=7)
    found = generator.generate([model], batch)
    best = [hypotheses[0]["tokens"] for hypotheses in found]
    assert len({len(tokens) for tokens in best} | {7, 8}) > 1
    uncertain = 0
    with torch.no_grad():
        senses = hypothesis_senses(model, batch["net_input"], best, 2, 1)
        for row, tokens in enumerate(best):
            expected = posteriors_step_by_step(model, batch, row, tokens.tolist())
            assert len(senses[row]) == len(tokens)
            for (sense, share), posterior in zip(senses[row], expected, strict=True):
                assert share == pytest.approx(max(posterior), abs=1e-4)
                assert posterior[sense] == pytest.approx(max(posterior), abs=1e-4)
                uncertain += len(posterior) > 1 and share < 0.999
    assert uncertain > 3  # otherwise nothing was tested


def test_a_plain_softmax_has_one_sense_a_word() -> None:
    model, batch = make_model("lstm", output_layer="softmax"), make_batch()
    rows = [torch.tensor([5, 6, 2])] * len(batch["target"])
    senses = hypothesis_senses(model, batch["net_input"], rows, 2, 1)
    assert senses == [[(0, 1.0)] * 3] * len(rows)


def test_lines_stand_under_the_scores_of_their_own_hypothesis(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def senses(
        model: Any, net_input: Any, hypotheses: list[torch.Tensor], start: int, padding: int
    ) -> list[list[tuple[int, float]]]:
        asked.append(([tokens.tolist() for tokens in hypotheses], start))
        return [[(token, 0.25) for token in tokens.tolist()] for tokens in hypotheses]

    monkeypatch.setattr("fairseq_kerbs.fairseq_patches.printed_senses.hypothesis_senses", senses)
    found = [[{"tokens": torch.tensor(t)} for t in row] for row in ([[4, 2], [5]], [[6]])]
    sample = {"id": torch.tensor([17, 3]), "net_input": {}}
    lines = SenseLines()
    lines.begin(None, sample, found, 9, 1)
    for line in ("P-17\t-1.0 -2.0", "H-17\t0\tP-17\tx", "P-17\t-3.0", "P-3\t-4.0", "P-99\t-5.0"):
        lines.print(line)
    assert capsys.readouterr().out.split("\n") == [
        *("P-17\t-1.0 -2.0", "K-17\t4:0.2500 2:0.2500", "H-17\t0\tP-17\tx"),
        *("P-17\t-3.0", "K-17\t5:0.2500", "P-3\t-4.0", "K-3\t6:0.2500", "P-99\t-5.0", ""),
    ]
    # the second of each only when it was asked for
    assert asked == [([[4, 2], [6]], 9), ([[5], [6]], 9)]


def generate(work: Path, *flags: object, program: str = "generate") -> tuple[int, str, str]:
    """fairseq's program on the test set: exit status, output and messages."""
    command = [find_program(f"fairseq-{program}"), str(work / "bin"), "--user-dir"]
    command += [str(PLUGIN_FOLDER), "--cpu", "--max-len-b", "9", *map(str, flags)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized text and a tiny trained model of ours."""
    return make_work(tmp_path_factory.mktemp("printed"))


@pytest.mark.slow
def test_every_score_has_its_sense(work: Path, tmp_path: Path) -> None:
    flags = ("--path", work / "model.pt", "--print-senses", "--beam", 2, "--nbest", 2)
    status, _, errors = generate(work, *flags, "--results-path", tmp_path)
    assert status == 0, errors
    lines = (tmp_path / "generate-test.txt").read_text().splitlines()
    scored = [number for number, line in enumerate(lines) if line.startswith("P-")]
    assert len(scored) == 12  # two for each sentence
    for number in scored:
        identity, scores = lines[number][2:].split("\t")
        assert re.fullmatch(rf"K-{identity}\t([0-3]:[01]\.\d{{4}} ?)+", lines[number + 1])
        assert len(lines[number + 1].split("\t")[1].split()) == len(scores.split())
    assert "Generate test with beam=2" in lines[-1]


@pytest.mark.slow
def test_wrong_uses_have_one_sentence(work: Path) -> None:
    fairseq_train(work / "bin", "--save-dir", work / "stock", "--arch", "lstm",
                  "--criterion", "cross_entropy", "--encoder-embed-dim", "4",
                  "--decoder-embed-dim", "4", "--decoder-out-embed-dim", "4")  # fmt: skip
    stock, own = work / "stock" / "checkpoint_last.pt", work / "model.pt"
    for path, program, sentence in (
        (stock, "generate", f"--print-senses: {stock} has no senses"),
        (f"{own}:{own}", "generate", "--print-senses needs one model, but --path names 2"),
        (own, "interactive", "--print-senses is for fairseq-generate"),
    ):
        status, output, errors = generate(work, "--path", path, "--print-senses", program=program)
        assert status != 0
        assert sentence in errors.splitlines()[-1]
        assert "Traceback" not in errors
        assert "H-" not in output
