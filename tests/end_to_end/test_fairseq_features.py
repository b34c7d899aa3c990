"""fairseq's own features with our models, by its real commands: ensembles, processes, …"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end import test_fairseq_commands as stock
from tests.end_to_end.test_fairseq_commands import COMMON, ROOT, TEST_PAIRS, fairseq, figure, run

pytestmark = pytest.mark.slow

data = stock.data  # the same tiny parallel text
KERBS = ["--criterion", "kerbs_cross_entropy", "--label-smoothing", "0.1"]
SETTINGS = [*COMMON, "--num-workers", "0"]
# every word takes a sense whenever it can: what moves depends on all statistics
MOVING = ["--reallocation-interval", "2", "--log-prob-threshold", "-0.01", "--sense-decay", "1e-3"]
# no statistics: those come with our criterion alone
STILL = ["--sense-decay", "0", "--max-update", "3"]
FLAGS = {
    model.arch: ["--arch", model.arch, "--dropout", "0.0", *model.flags.split()]
    for model in stock.MODELS
    if model.own
}
USER_DIR = ["--user-dir", str(ROOT / "fairseq_kerbs")]

# Every process writes down what it has at the end: fairseq itself saves the first one's.
RECORDING = """
import os, sys
import torch
import fairseq_cli.train as program

trainers = []

class Trainer(program.Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        trainers.append(self)

program.Trainer = Trainer
program.cli_main()
(trainer,) = trainers
rank = os.environ.get("RANK", "0")
moments = trainer.optimizer.optimizer.state_dict()["state"]
path = os.path.join(os.environ["RECORD"], f"rank{rank}.pt")
torch.save({"model": trainer.get_model().state_dict(), "moments": moments}, path)
"""


def train(data: Path, save_dir: Path, *flags: str | Path) -> str:
    """Train one of our models; later flags win over earlier ones."""
    return fairseq("train", data, *USER_DIR, *SETTINGS, *flags, "--save-dir", save_dir)


def scores(output: str) -> dict[int, float]:
    """Sentence number to the best hypothesis' score, from what fairseq-generate printed."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)
    return {int(number): float(score) for number, score in found}


def load(path: Path) -> dict[str, Any]:
    """A checkpoint."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state


def weights(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a model learned: neither the inventory nor fairseq's uninitialized buffer."""
    return {
        key: value
        for key, value in model.items()
        if ".inventory." not in key and not key.endswith("._float_tensor")
    }


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each architecture, and the log of its training beside it."""
    folders = {arch: tmp_path_factory.mktemp(arch) for arch in FLAGS}
    with ThreadPoolExecutor(2) as pool:
        logs = {
            arch: pool.submit(train, data, folder, *FLAGS[arch], *STILL, *KERBS)
            for arch, folder in folders.items()
        }
    for arch, log in logs.items():
        (folders[arch] / "train.log").write_text(log.result())
    return {arch: folder / "checkpoint_last.pt" for arch, folder in folders.items()}


def test_fairseqs_own_label_smoothing_trains_the_same_model(
    trained: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    arch = "transformer_kerbs"
    train(data, tmp_path, *FLAGS[arch], *STILL,
          "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")  # fmt: skip
    theirs = load(tmp_path / "checkpoint_last.pt")["model"]
    for key, value in weights(load(trained[arch])["model"]).items():
        torch.testing.assert_close(value, theirs[key], rtol=2e-3, atol=2e-4, msg=key)


def test_training_with_many_features_at_once(data: Path, tmp_path: Path) -> None:
    """--amp --update-freq --store-ema --eval-bleu --left-pad-target."""
    log = train(
        data,
        tmp_path,
        *(*FLAGS["lstm_kerbs"], *KERBS, *MOVING, "--max-update", "4"),
        *("--lr", "1e-4", "--amp", "--update-freq", "2"),
        *("--store-ema", "--ema-decay", "0.5", "--left-pad-target"),
        *("--eval-bleu", "--eval-bleu-args", json.dumps({"beam": 2, "max_len_b": 12})),
        *("--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu"),
        "--maximize-best-checkpoint-metric",
    )
    assert re.findall(r"reallocation after (\d+) updates", log)[0] == "2"
    assert figure(r"valid on .* \| bleu ([\d.]+)", log) >= 0.0
    state = load(tmp_path / "checkpoint_last.pt")
    model, averaged = state["model"], state["extra_state"]["ema"]
    owners = "decoder.output.inventory.word_of_sense"
    assert torch.equal(averaged[owners], model[owners])
    weight = "decoder.output.weight"
    assert not torch.equal(averaged[weight], model[weight])
    torch.testing.assert_close(averaged[weight], model[weight], atol=2e-3, rtol=0)


def test_reference_scores_are_those_of_the_ensemble_that_found_it(
    trained: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    paths = ":".join(str(path) for path in trained.values())
    flags = ["--path", paths, *USER_DIR, "--cpu", "--batch-size", "7"]
    output = fairseq("generate", data, *flags, "--beam", "2", "--max-len-b", "12")
    found = stock.hypotheses(output)
    assert len(found) == TEST_PAIRS
    text = tmp_path / "test"
    sources = stock.sources()[-TEST_PAIRS:]
    text.with_suffix(".de").write_text("".join(f"{line}\n" for line in sources))
    answers = [found[number] for number in range(TEST_PAIRS)]
    text.with_suffix(".en").write_text("".join(f"{line}\n" for line in answers))
    fairseq("preprocess", "-s", "de", "-t", "en", "--testpref", text, "--destdir", tmp_path,
            "--srcdict", data / "dict.de.txt", "--tgtdict", data / "dict.en.txt")  # fmt: skip
    again = fairseq("generate", tmp_path, *flags, "--score-reference")
    assert scores(again) == pytest.approx(scores(output), abs=2e-3)


def test_prefixes_and_sampling(trained: dict[str, Path], data: Path) -> None:
    flags = [*USER_DIR, "--cpu", "--batch-size", "7", "--max-len-b", "12"]
    path = ["--path", str(trained["lstm_kerbs"])]
    with ThreadPoolExecutor(2) as pool:
        prefix = pool.submit(fairseq, "generate", data, *path, *flags, "--prefix-size", "2",
                             "--beam", "3", "--print-alignment", "hard")  # fmt: skip
        sampling = pool.submit(fairseq, "generate", data, *path, *flags, "--sampling",
                               "--sampling-topp", "0.9", "--beam", "1")  # fmt: skip
    references = [line.upper().split() for line in stock.sources()[-TEST_PAIRS:]]
    for number, answer in stock.hypotheses(prefix.result()).items():
        assert answer.split()[:2] == references[number][:2]
    assert len(stock.hypotheses(prefix.result())) == TEST_PAIRS
    assert len(stock.hypotheses(sampling.result())) == TEST_PAIRS


def record(data: Path, folder: Path, processes: int, *flags: str) -> list[dict[str, Any]]:
    """Train and return what every process ended with."""
    program = folder / "recording.py"
    program.write_text(RECORDING)
    launch: list[str | Path] = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone"]
        launch += ["--nproc_per_node", str(processes)]
    run("env", f"RECORD={folder}", *launch, program, data, *USER_DIR, *SETTINGS, *flags,
        "--distributed-backend", "gloo", "--save-dir", folder / "saved")  # fmt: skip
    return [load(folder / f"rank{rank}.pt") for rank in range(processes)]


def flat(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors of nested dictionaries, by name."""
    if torch.is_tensor(state):
        return {name: state}
    if not isinstance(state, dict):
        return {}
    return {
        key: value
        for part, inner in state.items()
        for key, value in flat(inner, f"{name}/{part}").items()
    }


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("transformer_kerbs", ["--ddp-backend", "legacy_ddp"]),
        ("lstm_kerbs", ["--find-unused-parameters", "--composition", "prior"]),
    ],
)
def test_two_processes_are_one_with_twice_the_batches(
    arch: str, flags: list[str], trained: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    """Same parameters, moments and senses in every process, from a checkpoint to fine-tune."""
    common = [*FLAGS[arch], *KERBS, *MOVING, "--max-update", "4", *flags]
    common += ["--finetune-from-model", str(trained[arch]), "--lr", "1e-3"]
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        alone = pool.submit(record, data, folders[0], 1, *common, "--update-freq", "4")
        two = record(data, folders[1], 2, *common, "--update-freq", "2")
        (one,) = alone.result()
    first, second = flat(two[0]), flat(two[1])
    assert first.keys() == second.keys()
    assert len(first) > 30
    for key, value in first.items():
        if not key.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            assert torch.equal(value, second[key]), key
    owners = "decoder.output.inventory.word_of_sense"
    assert torch.equal(one["model"][owners], two[0]["model"][owners])
    assert not torch.equal(one["model"][owners], load(trained[arch])["model"][owners])
    for key, value in weights(one["model"]).items():
        torch.testing.assert_close(two[0]["model"][key], value, rtol=1e-2, atol=1e-3, msg=key)
