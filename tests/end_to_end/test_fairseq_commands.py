"""Every stock command of fairseq, run for real on tiny data: with its own models and with ours.

What a test asserts is what its command computed (losses, hypotheses, update counts), so that a
command that merely ends is not taken for one that works.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from tests.helpers import HANGS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
TEST_PAIRS = 20
UPDATES, RESUMED_UPDATES = 2, 4

# What users' own scripts do on systems whose processes are not forked.
SPAWNING = """
import multiprocessing

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    from fairseq_cli.train import cli_main

    cli_main()
"""

TRANSFORMER_FLAGS = """
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16
    --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32
    --encoder-attention-heads 2 --decoder-attention-heads 2
"""


@dataclass(frozen=True)
class Model:
    """An architecture with the flags that make it tiny."""

    arch: str
    flags: str
    own: bool = False

    @property
    def user_dir(self) -> list[str]:
        return ["--user-dir", str(ROOT / "fairseq_kerbs")] if self.own else []

    @property
    def criterion(self) -> list[str]:
        name = "kerbs_cross_entropy" if self.own else "label_smoothed_cross_entropy"
        return ["--criterion", name, "--label-smoothing", "0.1"]

    @property
    def training(self) -> list[str]:
        return ["--arch", self.arch, *self.flags.split(), *self.criterion, *self.user_dir]


MODELS = [
    Model("transformer", TRANSFORMER_FLAGS),
    Model(
        "lstm",
        """--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16
        --decoder-hidden-size 16 --decoder-out-embed-dim 16""",
    ),
    Model("transformer_kerbs", TRANSFORMER_FLAGS + "--reallocation-interval 2", own=True),
    Model("lstm_kerbs", "--hidden-size 16 --embed-dim 16 --reallocation-interval 2", own=True),
]
COMMON = ["--optimizer", "adam", "--lr", "0.01", "--max-tokens", "100", "--cpu", "--seed", "3",
          "--log-format", "simple", "--log-interval", "1"]  # fmt: skip


def run(*command: str | Path, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run a command; return what it printed. It must end with 0, without help of a GPU."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=HANGS,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def fairseq(
    name: str, *arguments: str | Path, stdin: str | None = None, cwd: Path | None = None
) -> str:
    """Run the console script `fairseq-NAME` that is installed beside this Python."""
    return run(PROGRAMS / f"fairseq-{name}", *arguments, stdin=stdin, cwd=cwd)


def figure(pattern: str, output: str) -> float:
    """The last number that `pattern` captures in `output`."""
    found = re.findall(pattern, output)
    assert found, f"no {pattern} in:\n{output[-3000:]}"
    return float(found[-1])


def hypotheses(output: str) -> dict[int, str]:
    """Sentence number to best hypothesis, from what fairseq-generate or -interactive printed."""
    return {
        int(number): text
        for number, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    }


def sources() -> list[str]:
    """Sentences of unequal lengths, so that every batch has padding."""
    rng = random.Random(11)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(120)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized parallel text: each target word is its source word in capitals."""
    folder = tmp_path_factory.mktemp("parallel")
    lines = sources()
    splits = {"train": lines[:-40], "valid": lines[-40:-20], "test": lines[-TEST_PAIRS:]}
    for split, part in splits.items():
        (folder / f"{split}.de").write_text("".join(f"{line}\n" for line in part))
        (folder / f"{split}.en").write_text("".join(f"{line.upper()}\n" for line in part))
    flags = [f"--{split}pref={folder / split}" for split in splits]
    output = fairseq("preprocess", "-s", "de", "-t", "en", *flags, "--destdir", folder / "bin",
                     "--workers", "2")  # fmt: skip
    assert f"test.en: {TEST_PAIRS} sents" in output
    return folder / "bin"


@dataclass(frozen=True)
class Trained:
    """A model after its first updates: folder, checkpoint and what fairseq-train printed."""

    model: Model
    folder: Path
    output: str

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.arch)
def trained(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """Train with two spawned dataloader workers and a tensorboard log."""
    model: Model = request.param
    folder = tmp_path_factory.mktemp(model.arch)
    program = folder / "spawning_train.py"
    program.write_text(SPAWNING)
    output = run(sys.executable, program, data, *COMMON, *model.training, "--num-workers", "2",
                 "--tensorboard-logdir", folder / "log", "--max-update", str(UPDATES),
                 "--save-dir", folder)  # fmt: skip
    return Trained(model, folder, output)


def test_train_with_spawned_workers(trained: Trained) -> None:
    assert figure(r"num_updates (\d+)", trained.output) == UPDATES
    assert 1.0 < figure(r"train \| .* \| loss ([\d.]+)", trained.output) < 20.0
    events = list((trained.folder / "log" / "train").glob("events.out.tfevents.*"))
    assert events
    assert events[0].stat().st_size > 0


def test_validate_agrees_with_training(trained: Trained, data: Path) -> None:
    """The restored model has the loss that training validated before it saved the checkpoint."""
    output = fairseq("validate", data, "--task", "translation", "--path", trained.checkpoint,
                     "--max-tokens", "100", "--cpu", *trained.model.criterion,
                     *trained.model.user_dir)  # fmt: skip
    pattern = r"valid.* \| nll_loss ([\d.]+)"
    expected = figure(pattern, trained.output)
    assert figure(pattern, output) == pytest.approx(expected, abs=2e-3)


def test_generate_and_interactive_agree(trained: Trained, data: Path) -> None:
    """One translates padded batches of seven, the other sentence by sentence, without padding."""
    flags = ["--path", str(trained.checkpoint), "--beam", "3", "--max-len-b", "12", "--cpu",
             *trained.model.user_dir]  # fmt: skip
    lines = "".join(f"{line}\n" for line in sources()[-TEST_PAIRS:])
    with ThreadPoolExecutor(2) as pool:  # two processors are better than one
        generate = pool.submit(
            fairseq, "generate", data, *flags, "--batch-size", "7", "--scoring", "sacrebleu"
        )
        interactive = pool.submit(fairseq, "interactive", data, *flags, stdin=lines)
        batched, alone = generate.result(), interactive.result()
    assert figure(r"Generate test with beam=3: \D*BLEU\D* ([\d.]+)", batched) >= 0.0
    assert len(hypotheses(batched)) == TEST_PAIRS
    assert hypotheses(alone) == hypotheses(batched)


def test_torchrun_resumes_with_default_ddp(trained: Trained, data: Path) -> None:
    """Two processes load the checkpoint, go on from there together and save another model."""
    saved = trained.folder / "two_processes"
    output = run(sys.executable, "-m", "torch.distributed.run", "--standalone",
                 "--nproc_per_node", "2", PROGRAMS / "fairseq-train", data, *COMMON,
                 *trained.model.training, "--distributed-backend", "gloo", "--num-workers", "2",
                 "--restore-file", trained.checkpoint, "--max-update", str(RESUMED_UPDATES),
                 "--save-dir", saved)  # fmt: skip
    assert f"@ {UPDATES} updates" in output
    assert "distributed init (rank 1)" in output
    assert figure(r"num_updates (\d+)", output) == RESUMED_UPDATES
    before, after = (
        torch.load(path, map_location="cpu", weights_only=False)["model"]
        for path in (trained.checkpoint, saved / "checkpoint_last.pt")
    )
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_checkpoint_of_an_unedited_fairseq(data: Path, tmp_path: Path) -> None:
    """It holds copies of the weights of each encoder layer; without them the model is the same."""
    fairseq("train", data, *COMMON, *MODELS[0].training, "--max-update", "1", "--save-dir",
            tmp_path)  # fmt: skip
    new, old = tmp_path / "checkpoint_last.pt", tmp_path / "old.pt"
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
    flags = ["--batch-size", "7", "--max-len-b", "12", "--cpu"]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(fairseq, "generate", data, "--path", path, *flags)
                 for path in (new, old)]  # fmt: skip
        outputs = [call.result() for call in calls]
    assert len(hypotheses(outputs[0])) == TEST_PAIRS
    assert hypotheses(outputs[0]) == hypotheses(outputs[1])


def test_amp(data: Path, tmp_path: Path) -> None:
    output = fairseq("train", data, *COMMON, *MODELS[0].training, "--amp", "--max-update", "2",
                     "--save-dir", tmp_path)  # fmt: skip
    assert figure(r"num_updates (\d+)", output) == 2


def test_adaptive_softmax(data: Path, tmp_path: Path) -> None:
    fairseq("train", data, *COMMON, "--arch", "transformer", *TRANSFORMER_FLAGS.split(),
            "--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "8,16",
            "--ddp-backend", "legacy_ddp", "--max-update", "2", "--save-dir", tmp_path)  # fmt: skip
    output = fairseq("generate", data, "--path", tmp_path / "checkpoint_last.pt", "--cpu",
                     "--batch-size", "5", "--max-len-b", "12")  # fmt: skip
    assert len(hypotheses(output)) == TEST_PAIRS


def test_score(tmp_path: Path) -> None:
    (tmp_path / "reference").write_text("one two three four five\nsix seven eight nine ten\n")
    (tmp_path / "system").write_text("one two three four five\nsix seven eight nine eleven\n")
    output = fairseq("score", "--sys", tmp_path / "system", "--ref", tmp_path / "reference")
    # 9 of 10 words, 7 of 8 pairs, 5 of 6 triples, 3 of 4 quadruples; no brevity penalty
    expected = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert figure(r"BLEU4 = ([\d.]+)", output) == pytest.approx(expected, abs=0.01)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized text for language models."""
    folder = tmp_path_factory.mktemp("text")
    for split, part in {"train": sources()[20:], "valid": sources()[:20]}.items():
        (folder / split).write_text("".join(f"{line}\n" for line in part))
    fairseq("preprocess", "--only-source", "--trainpref", folder / "train", "--validpref",
            folder / "valid", "--destdir", folder / "bin")  # fmt: skip
    return folder / "bin"


def test_language_model(text: Path, tmp_path: Path) -> None:
    """fairseq-eval-lm finds the perplexity that training validated, token blocks being the same."""
    trained = fairseq("train", text, "--task", "language_modeling", "--arch", "transformer_lm",
                      "--decoder-layers", "1", "--decoder-embed-dim", "16",
                      "--decoder-ffn-embed-dim", "32", "--decoder-attention-heads", "2", *COMMON,
                      "--tokens-per-sample", "20", "--sample-break-mode", "none",
                      "--max-update", "3", "--save-dir", tmp_path)  # fmt: skip
    output = fairseq("eval-lm", text, "--path", tmp_path / "checkpoint_last.pt", "--cpu",
                     "--tokens-per-sample", "20", "--sample-break-mode", "none",
                     "--gen-subset", "valid", "--batch-size", "4")  # fmt: skip
    perplexity = figure(r"valid \| .* \| ppl ([\d.]+)", trained)
    assert figure(r"Perplexity: ([\d.]+)", output) == pytest.approx(perplexity, abs=0.02)


HYDRA = """
common.cpu=true common.log_format=simple common.log_interval=1 optimizer=adam optimization.lr=[0.01]
optimization.max_update=2 lr_scheduler=fixed dataset.max_tokens=100
""".split()  # noqa: SIM905


def test_hydra_train_with_stock_model(text: Path, tmp_path: Path) -> None:
    """A model from fairseq's own configuration files, some of its values overridden."""
    tiny = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 32, "input_dim": 16, "output_dim": 16,
            "attention_heads": 2}  # fmt: skip
    overrides = [f"model.transformer_lm.decoder_{name}={value}" for name, value in tiny.items()]
    output = fairseq("hydra-train", *HYDRA, "task=language_modeling", f"task.data={text}",
                     "task.tokens_per_sample=20", "criterion=cross_entropy",
                     "model=transformer_lm/transformer_lm_gpt", *overrides,
                     f"checkpoint.save_dir={tmp_path}", cwd=tmp_path)  # fmt: skip
    assert figure(r"num_updates (\d+)", output) == 2
    output = fairseq("eval-lm", text, "--path", tmp_path / "checkpoint_last.pt",
                     "--tokens-per-sample", "20", "--gen-subset", "valid", "--cpu")  # fmt: skip
    assert figure(r"Perplexity: ([\d.]+)", output) > 1.0


@pytest.mark.parametrize("arch", ["transformer_kerbs", "lstm_kerbs"])
def test_hydra_train_with_our_model(arch: str, data: Path, tmp_path: Path) -> None:
    """A user's own configuration file names the plugin, its model and its criterion."""
    flags = next(model.flags for model in MODELS if model.arch == arch).split()
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags[::2]]
    configuration = {
        "common": {"user_dir": str(ROOT / "fairseq_kerbs")},
        "task": {"_name": "translation", "data": str(data)},
        "model": {"_name": arch} | dict(zip(names, map(int, flags[1::2]), strict=True)),
        "criterion": {"_name": "kerbs_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(configuration))
    overrides = [item for item in HYDRA if not item.startswith(("optimizer=", "lr_scheduler="))]
    output = fairseq("hydra-train", "--config-dir", tmp_path, "--config-name", "tiny", *overrides,
                     f"checkpoint.save_dir={tmp_path}", cwd=tmp_path)  # fmt: skip
    assert figure(r"num_updates (\d+)", output) == 2
    output = fairseq("generate", data, "--path", tmp_path / "checkpoint_last.pt",
                     "--batch-size", "7", "--max-len-b", "12", "--cpu", "--user-dir",
                     ROOT / "fairseq_kerbs")  # fmt: skip
    assert len(hypotheses(output)) == TEST_PAIRS
