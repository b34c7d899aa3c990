"""Every stock command of fairseq on tiny data: with its own models and with ours.

What a test asserts is what its command computed (losses, hypotheses, update counts), so that a
command that merely ends is not taken for one that works.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import ROOT, USER_DIR, run
from tests.helpers.tiny_trainings import (
    DECODING,
    FLAGS,
    TEST_PAIRS,
    UPDATES,
    Trained,
    criterion,
    figure,
    hypotheses,
    sources,
    write_lines,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("arch", FLAGS)
def test_train_and_validate(arch: str, trained: Callable[[str], Trained], data: Path) -> None:
    """The restored model has the loss that training validated before it saved the checkpoint."""
    model = trained(arch)
    assert figure(r"num_updates (\d+)", model.output) == UPDATES
    assert 1.0 < figure(r"train \| .* \| loss ([\d.]+)", model.output) < 20.0
    (events,) = (model.folder / "log" / "train").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    output = run("fairseq-validate", data, "--task", "translation", "--path", model.checkpoint,
                 "--max-tokens", "100", "--cpu", *criterion(arch))  # fmt: skip
    pattern = r"valid.* \| nll_loss ([\d.]+)"
    assert figure(pattern, output) == pytest.approx(figure(pattern, model.output), abs=2e-3)


@pytest.mark.parametrize("arch", FLAGS)
def test_generate_and_interactive_agree(
    arch: str, trained: Callable[[str], Trained], data: Path
) -> None:
    """One translates padded batches of seven, the other sentence by sentence, without padding."""
    flags = ["--path", trained(arch).checkpoint, "--beam", "3", "--max-len-b", "12", "--cpu"]
    flags += USER_DIR if arch.endswith("_kerbs") else ()
    batched = run("fairseq-generate", data, *flags, "--batch-size", "7", "--scoring", "sacrebleu")
    lines = "".join(f"{line}\n" for line in sources()[-TEST_PAIRS:])
    alone = run("fairseq-interactive", data, *flags, stdin=lines)
    assert figure(r"Generate test with beam=3: \D*BLEU\D* ([\d.]+)", batched) >= 0.0
    assert len(hypotheses(batched)) == TEST_PAIRS
    assert hypotheses(alone) == hypotheses(batched)


def test_checkpoint_of_an_unedited_fairseq(
    trained: Callable[[str], Trained], data: Path, tmp_path: Path
) -> None:
    """It holds copies of the weights of each encoder layer; without them the model is the same."""
    new, old = trained("transformer").checkpoint, tmp_path / "old.pt"
    state = torch.load(new, weights_only=False)
    weights = state["model"]
    layer = "encoder.layers.0."
    for name in ("out_proj", "fc1", "fc2"):
        source = f"{layer}self_attn.{name}" if name == "out_proj" else layer + name
        for part in ("weight", "bias"):
            weights[f"{layer}{name}_{part}"] = weights[f"{source}.{part}"]
    for part in ("weight", "bias"):
        parts = [weights[f"{layer}self_attn.{name}_proj.{part}"] for name in "qkv"]
        weights[f"{layer}in_proj_{part}"] = torch.cat(parts)
    torch.save(state, old)
    expected, found = (
        hypotheses(run("fairseq-generate", data, "--path", path, *DECODING)) for path in (new, old)
    )
    assert len(expected) == TEST_PAIRS
    assert found == expected


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized text for language models."""
    folder = tmp_path_factory.mktemp("text")
    write_lines(folder / "train", sources()[20:])
    write_lines(folder / "valid", sources()[:20])
    run("fairseq-preprocess", "--only-source", "--trainpref", folder / "train", "--validpref",
        folder / "valid", "--destdir", folder / "bin")  # fmt: skip
    return folder / "bin"


HYDRA = """
common.cpu=true common.log_format=simple common.log_interval=1 optimizer=adam optimization.lr=[0.01]
optimization.max_update=2 lr_scheduler=fixed dataset.max_tokens=100 dataset.num_workers=0
""".split()  # noqa: SIM905


def test_hydra_train_and_eval_lm(text: Path, tmp_path: Path) -> None:
    """A model from fairseq's own configuration files; its perplexity is what training validated."""
    tiny = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 32, "input_dim": 16, "output_dim": 16,
            "attention_heads": 2}  # fmt: skip
    overrides = [f"model.transformer_lm.decoder_{name}={value}" for name, value in tiny.items()]
    trained = run("fairseq-hydra-train", *HYDRA, "task=language_modeling", f"task.data={text}",
                  "task.tokens_per_sample=20", "task.sample_break_mode=none",
                  "criterion=cross_entropy", "model=transformer_lm/transformer_lm_gpt",
                  *overrides, f"checkpoint.save_dir={tmp_path}", cwd=tmp_path)  # fmt: skip
    assert figure(r"num_updates (\d+)", trained) == 2
    output = run("fairseq-eval-lm", text, "--path", tmp_path / "checkpoint_last.pt", "--cpu",
                 "--tokens-per-sample", "20", "--sample-break-mode", "none",
                 "--gen-subset", "valid", "--batch-size", "4")  # fmt: skip
    perplexity = figure(r"valid.* \| ppl ([\d.]+)", trained)
    assert figure(r"Perplexity: ([\d.]+)", output) == pytest.approx(perplexity, abs=0.02)


def test_hydra_train_as_documented(data: Path, tmp_path: Path) -> None:
    """The command of configs/README.md, for fewer updates; it goes on, also by the search path
    alone, and fairseq-generate reads its checkpoint."""
    page = (ROOT / "configs/README.md").read_text()
    (text,) = re.findall(r"^    (fairseq-hydra-train (?:.*\\\n)+.*)\n", page, re.MULTILINE)
    for written, real in (("quickstart/data/bin", data), ("runs", tmp_path), ("", f"{ROOT}/")):
        text = text.replace(f"$PWD/{written}", str(real))
    program, *arguments = shlex.split(text.replace("\\\n", " "))
    output = run(program, *arguments, "optimization.max_update=2", "common.cpu=true", cwd=tmp_path)
    assert re.search("'encoder_embed_dim': 128,.*'_name': 'kerbs_cross_entropy'", output)
    assert figure(r"num_updates (\d+)", output) == 2
    arguments.remove(f"common.user_dir={ROOT}/fairseq_kerbs")
    output = run(program, *arguments, "optimization.max_update=3", "common.cpu=true", cwd=tmp_path)
    assert figure(r"Loaded checkpoint .* @ (\d+) updates", output) == 2
    assert figure(r"num_updates (\d+)", output) == 3
    best = tmp_path / "hydra/checkpoint_best.pt"
    output = run("fairseq-generate", data, *USER_DIR, "--path", best, *DECODING)
    assert len(hypotheses(output)) == TEST_PAIRS
