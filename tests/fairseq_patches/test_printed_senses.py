"""``fairseq-generate --print-senses``: the senses that predicted each token of a hypothesis."""

from __future__ import annotations

import re
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_kerbs.analysis.context_vectors import sense_numbers
from fairseq_kerbs.fairseq_patches import printed_senses
from fairseq_kerbs.fairseq_patches.printed_senses import SenseLines, hypothesis_senses
from fairseq_kerbs.utils.errors import ProgramEnd
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, find_program
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.reference import naive_logits
from tests.helpers.tiny_checkpoint import make_work


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
            for token, (sense, share), posterior in zip(
                tokens.tolist(), senses[row], expected, strict=True
            ):
                assert share == pytest.approx(max(posterior), abs=1e-4)
                own = sense_numbers(model.decoder.output, token)
                ascending = sorted(own).index(own[sense - 1])
                assert posterior[ascending] == pytest.approx(max(posterior), abs=1e-4)
                uncertain += len(posterior) > 1 and share < 0.999
    assert uncertain > 3  # otherwise nothing was tested


def test_a_plain_softmax_has_one_sense_a_word() -> None:
    model, batch = make_model("lstm", output_layer="softmax"), make_batch()
    rows = [torch.tensor([5, 6, 2])] * len(batch["target"])
    senses = hypothesis_senses(model, batch["net_input"], rows, 2, 1)
    assert senses == [[(1, 1.0)] * 3] * len(rows)


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
    task = make_task()
    task.inference_step = lambda generator, models, sample: generator.generate(bos_token=9)
    lines = SenseLines(task, None)
    generator = SimpleNamespace(generate=lambda **_: found)
    assert task.inference_step(generator, [], sample) is found
    for line in ("P-17\t-1.0 -2.0", "H-17\t0\tP-17\tx", "P-17\t-3.0", "P-3\t-4.0", "P-99\t-5.0"):
        lines.print(line)
    assert capsys.readouterr().out.split("\n") == [
        *("P-17\t-1.0 -2.0", "K-17\tw0#4:0.2500 </s>#2:0.2500", "H-17\t0\tP-17\tx"),
        *("P-17\t-3.0", "K-17\tw1#5:0.2500", "P-3\t-4.0", "K-3\tw2#6:0.2500", "P-99\t-5.0", ""),
    ]
    # the second of each only when it was asked for
    assert asked == [([[4, 2], [6]], 9), ([[5], [6]], 9)]


@pytest.mark.slow
def test_every_score_has_its_sense(tmp_path: Path) -> None:
    work = make_work(tmp_path)
    flags = ["--path", work / "model.pt", "--print-senses", "--beam", 2, "--nbest", 2]
    flags += ["--user-dir", PLUGIN_FOLDER, "--cpu", "--max-len-b", 9, "--results-path", tmp_path]
    command = [find_program("fairseq-generate"), work / "bin", *flags]
    subprocess.run(list(map(str, command)), capture_output=True, check=True)
    lines = (tmp_path / "generate-test.txt").read_text().splitlines()
    scored = [number for number, line in enumerate(lines) if line.startswith("P-")]
    assert len(scored) == 12  # two for each sentence
    for number in scored:
        identity, scores = lines[number][2:].split("\t")
        assert re.fullmatch(rf"K-{identity}\t(\S+#[1-4]:[01]\.\d{{4}} ?)+", lines[number + 1])
        assert len(lines[number + 1].split("\t")[1].split()) == len(scores.split())
    assert "Generate test with beam=2" in lines[-1]


def test_wrong_uses_have_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printed_senses._PrintSenses, "given", True)
    own, stock = make_model("lstm"), SimpleNamespace(decoder=SimpleNamespace())
    for models, sentence in (
        ([stock], "--print-senses: a.pt has no senses"),
        ([own, own], "--print-senses needs one model, but --path names 2"),
    ):
        with pytest.raises(ProgramEnd, match=sentence):
            printed_senses.load_model_ensemble(
                lambda *_, loaded=models, **__: (loaded, None), ["a.pt"], task=make_task()
            )
    parser = ArgumentParser()
    parser.add_argument("--buffer-size")
    printed_senses.add_generation_args(lambda group: group, parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--print-senses"])
    assert "--print-senses is for fairseq-generate" in capsys.readouterr().err
