"""fairseq's own features with our models, by its commands: averages, ensembles, prefixes, …"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from tests.end_to_end.conftest import Train
from tests.helpers import tiny_trainings as tiny
from tests.helpers.commands import USER_DIR, run
from tests.training.test_resume import load

pytestmark = pytest.mark.slow

KERBS = ["--criterion", "kerbs_cross_entropy", "--label-smoothing", "0.1"]
# every word takes a sense whenever it can: what moves depends on all statistics
MOVING = ["--reallocation", "paper", "--reallocation-interval", "2"]
MOVING += ["--log-prob-threshold", "-0.01", "--sense-decay", "1e-3"]
# no statistics: those come with our criterion alone
STILL = ["--sense-decay", "0", "--max-update", "3", "--dropout", "0.0"]


def train(data: Path, save_dir: Path, arch: str, *flags: object) -> str:
    """Train one of our models; later flags win over earlier ones."""
    arguments = (*USER_DIR, *tiny.COMMON, "--arch", arch, *flags, "--save-dir", save_dir)
    return run("fairseq-train", data, *arguments)


def generate(data: Path, paths: list[Path], *flags: object) -> str:
    """Translate by one model or by an ensemble."""
    path = ("--path", ":".join(map(str, paths)))
    return run("fairseq-generate", data, *path, *USER_DIR, *tiny.DECODING, *flags)


def scores(output: str) -> dict[int, float]:
    """Sentence number to the best hypothesis' score, from what fairseq-generate printed."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)
    return {int(number): float(score) for number, score in found}


def test_fairseqs_own_label_smoothing_trains_the_same_model(data: Path, tmp_path: Path) -> None:
    arch = "transformer_kerbs"
    train(data, tmp_path / "ours", arch, *tiny.FLAGS[arch], *STILL, *KERBS)
    train(data, tmp_path, arch, *tiny.FLAGS[arch], *STILL,
          "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")  # fmt: skip
    theirs = load(tmp_path / "checkpoint_last.pt")["model"]
    for key, value in load(tmp_path / "ours" / "checkpoint_last.pt")["model"].items():
        # contexts are sampled by our criterion alone; fairseq leaves the last uninitialized
        if not re.search(r"[.](inventory|sample_|_float_tensor)", key):
            torch.testing.assert_close(value, theirs[key], rtol=2e-3, atol=2e-4, msg=key)


def test_training_with_many_features_at_once(data: Path, tmp_path: Path) -> None:
    """--amp --update-freq --eval-bleu --left-pad-target."""
    flags = [*tiny.FLAGS["lstm_kerbs"], *KERBS, *MOVING, "--max-update", "4", "--lr", "1e-4"]
    flags += ["--amp", "--update-freq", "2", "--dropout", "0.0", "--left-pad-target"]
    flags += ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}']
    flags += ["--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu"]
    flags += ["--maximize-best-checkpoint-metric"]
    log = train(data, tmp_path, "lstm_kerbs", *flags)
    assert re.findall(r"reallocation after (\d+) updates", log)[0] == "2"
    assert tiny.figure(r"valid on .* \| bleu ([\d.]+)", log) >= 0.0


def test_reference_scores_are_the_ensembles(trained: Train, data: Path, tmp_path: Path) -> None:
    paths = [trained(arch).checkpoint for arch in ("transformer_kerbs", "lstm_kerbs")]
    recursion = ("--model-overrides", "{'composition_passes': -1}")  # as decoding takes it
    output = generate(data, paths, "--beam", "2", *recursion)
    found = tiny.hypotheses(output)
    assert len(found) == tiny.TEST_PAIRS
    tiny.write_lines(tmp_path / "test.de", tiny.sources()[-tiny.TEST_PAIRS :])
    tiny.write_lines(tmp_path / "test.en", [found[number] for number in range(tiny.TEST_PAIRS)])
    run("fairseq-preprocess", "-s", "de", "-t", "en", "--testpref", tmp_path / "test",
        "--destdir", tmp_path, "--srcdict", data / "dict.de.txt", "--tgtdict",
        data / "dict.en.txt")  # fmt: skip
    again = generate(tmp_path, paths, "--score-reference", *recursion)
    assert scores(again) == pytest.approx(scores(output), abs=2e-3)


def test_prefixes_and_sampling(trained: Train, data: Path) -> None:
    path = [trained("lstm_kerbs").checkpoint]
    flags = ("--prefix-size", "2", "--beam", "3", "--print-alignment", "hard")
    prefixed = tiny.hypotheses(generate(data, path, *flags))
    assert len(prefixed) == tiny.TEST_PAIRS
    references = [line.upper().split() for line in tiny.sources()[-tiny.TEST_PAIRS :]]
    for number, answer in prefixed.items():
        assert answer.split()[:2] == references[number][:2]
    sampled = generate(data, path, "--sampling", "--sampling-topp", "0.9", "--beam", "1")
    assert len(tiny.hypotheses(sampled)) == tiny.TEST_PAIRS


def test_mixtures_train_validate_and_translate(data: Path, tmp_path: Path) -> None:
    """Mixtures of softmaxes and of kernels, then both as an ensemble."""
    layers = {
        "transformer_kerbs": [*tiny.TRANSFORMER, "--output-layer", "mos"],
        "lstm_kerbs": ["--hidden-size", "16", "--embed-dim", "16", "--output-layer", "mixture",
                       "--mixture-kernels", "lin,log"],
    }  # fmt: skip
    for arch, count in (("transformer_kerbs", 3), ("lstm_kerbs", 2)):
        log = train(data, tmp_path / arch, arch, *layers[arch], *KERBS, "--max-update", "4",
                    "--mixture-regularization", "0.1")  # fmt: skip
        losses = re.findall(r"train_inner.* nll_loss=([0-9.]+)", log)
        assert float(losses[-1]) < float(losses[0])
        weights = (rf"train_inner.* mixture_weight_{k}=([0-9.]+)" for k in range(count))
        assert sum(tiny.figure(each, log) for each in weights) == pytest.approx(1.0, abs=1e-3)
        assert "mixture_variance=" in log
    paths = [tmp_path / arch / "checkpoint_last.pt" for arch in layers]
    found = scores(generate(data, paths, "--beam", "3"))
    assert len(found) == tiny.TEST_PAIRS
    assert all(math.isfinite(score) for score in found.values())
    validated = run("fairseq-validate", data, *USER_DIR, "--path", paths[1], "--task",
                    "translation", "--cpu", "--batch-size", "10")  # fmt: skip
    assert "mixture_weight_1" in validated
