"""fairseq's own features with our models, by its commands: averages, ensembles, prefixes, …"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import USER_DIR, run
from tests.helpers.tiny_trainings import (
    COMMON,
    DECODING,
    FLAGS,
    TEST_PAIRS,
    TRANSFORMER,
    Trained,
    figure,
    hypotheses,
    sources,
    write_lines,
)
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
    arguments = (*USER_DIR, *COMMON, "--arch", arch, *flags, "--save-dir", save_dir)
    return run("fairseq-train", data, *arguments)


def generate(data: Path, paths: list[Path], *flags: object) -> str:
    """Translate by one model or by an ensemble."""
    path = ("--path", ":".join(map(str, paths)))
    return run("fairseq-generate", data, *path, *USER_DIR, *DECODING, *flags)


def scores(output: str) -> dict[int, float]:
    """Sentence number to the best hypothesis' score, from what fairseq-generate printed."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)
    return {int(number): float(score) for number, score in found}


def test_fairseqs_own_label_smoothing_trains_the_same_model(data: Path, tmp_path: Path) -> None:
    arch = "transformer_kerbs"
    train(data, tmp_path / "ours", arch, *FLAGS[arch], *STILL, *KERBS)
    train(data, tmp_path, arch, *FLAGS[arch], *STILL,
          "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")  # fmt: skip
    theirs = load(tmp_path / "checkpoint_last.pt")["model"]
    for key, value in load(tmp_path / "ours" / "checkpoint_last.pt")["model"].items():
        # contexts are sampled by our criterion alone; fairseq leaves the last uninitialized
        if not re.search(r"[.](inventory|sample_|_float_tensor)", key):
            torch.testing.assert_close(value, theirs[key], rtol=2e-3, atol=2e-4, msg=key)


def test_training_with_many_features_at_once(data: Path, tmp_path: Path) -> None:
    """--amp --update-freq --eval-bleu --left-pad-target."""
    log = train(
        data,
        tmp_path,
        *("lstm_kerbs", *FLAGS["lstm_kerbs"], *KERBS, *MOVING, "--max-update", "4"),
        *("--lr", "1e-4", "--amp", "--update-freq", "2", "--dropout", "0.0"),
        "--left-pad-target",
        *("--eval-bleu", "--eval-bleu-args", json.dumps({"beam": 2, "max_len_b": 12})),
        *("--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu"),
        "--maximize-best-checkpoint-metric",
    )
    assert re.findall(r"reallocation after (\d+) updates", log)[0] == "2"
    assert figure(r"valid on .* \| bleu ([\d.]+)", log) >= 0.0


def test_reference_scores_are_those_of_the_ensemble_that_found_it(
    trained: Callable[[str], Trained], data: Path, tmp_path: Path
) -> None:
    paths = [trained(arch).checkpoint for arch in ("transformer_kerbs", "lstm_kerbs")]
    recursion = ("--model-overrides", "{'composition_passes': -1}")  # as decoding takes it
    output = generate(data, paths, "--beam", "2", *recursion)
    found = hypotheses(output)
    assert len(found) == TEST_PAIRS
    write_lines(tmp_path / "test.de", sources()[-TEST_PAIRS:])
    write_lines(tmp_path / "test.en", [found[number] for number in range(TEST_PAIRS)])
    run("fairseq-preprocess", "-s", "de", "-t", "en", "--testpref", tmp_path / "test",
        "--destdir", tmp_path, "--srcdict", data / "dict.de.txt", "--tgtdict",
        data / "dict.en.txt")  # fmt: skip
    again = generate(tmp_path, paths, "--score-reference", *recursion)
    assert scores(again) == pytest.approx(scores(output), abs=2e-3)


def test_prefixes_and_sampling(trained: Callable[[str], Trained], data: Path) -> None:
    path = [trained("lstm_kerbs").checkpoint]
    prefixed = hypotheses(
        generate(data, path, "--prefix-size", "2", "--beam", "3", "--print-alignment", "hard")
    )
    assert len(prefixed) == TEST_PAIRS
    references = [line.upper().split() for line in sources()[-TEST_PAIRS:]]
    for number, answer in prefixed.items():
        assert answer.split()[:2] == references[number][:2]
    sampled = generate(data, path, "--sampling", "--sampling-topp", "0.9", "--beam", "1")
    assert len(hypotheses(sampled)) == TEST_PAIRS


def test_mixtures_train_validate_and_translate(data: Path, tmp_path: Path) -> None:
    """Mixtures of softmaxes and of kernels, then both as an ensemble."""
    layers = {
        "transformer_kerbs": [*TRANSFORMER, "--output-layer", "mos"],
        "lstm_kerbs": ["--hidden-size", "16", "--embed-dim", "16", "--output-layer", "mixture",
                       "--mixture-kernels", "lin,log"],
    }  # fmt: skip
    for arch, count in (("transformer_kerbs", 3), ("lstm_kerbs", 2)):
        log = train(data, tmp_path / arch, arch, *layers[arch], *KERBS, "--max-update", "4",
                    "--mixture-regularization", "0.1")  # fmt: skip
        losses = re.findall(r"train_inner.* nll_loss=([0-9.]+)", log)
        assert float(losses[-1]) < float(losses[0])
        weights = [
            figure(rf"train_inner.* mixture_weight_{k}=([0-9.]+)", log) for k in range(count)
        ]
        assert sum(weights) == pytest.approx(1.0, abs=1e-3)
        assert "mixture_variance=" in log
    paths = [tmp_path / arch / "checkpoint_last.pt" for arch in layers]
    found = scores(generate(data, paths, "--beam", "3"))
    assert len(found) == TEST_PAIRS
    assert all(math.isfinite(score) for score in found.values())
    validated = run("fairseq-validate", data, *USER_DIR, "--path", paths[1], "--task",
                    "translation", "--cpu", "--batch-size", "10")  # fmt: skip
    assert "mixture_weight_1" in validated
