"""An interrupted training ends with the same bits as an undisturbed one, however it was ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny_trainings import TRANSFORMER
from tests.helpers.training_runs import ROOT, Run, binarize, trainings

pytestmark = pytest.mark.slow

HALF, WHOLE, EVERY = 6, 12, 3  # updates; a checkpoint after every third
MODELS = {
    # the sample of contexts of an interval of four updates is half complete in checkpoints
    "gru_kerbs": [
        *("--hidden-size", "12", "--embed-dim", "12", "--reallocation", "clusters"),
        *("--reallocation-interval", "4", "--reallocation-at", "4", "8", "--max-tokens", "150"),
    ],
    # fairseq seeds by the number of the update, so dropout is as it would have been
    "transformer_kerbs": [
        *(*TRANSFORMER, "--dropout", "0.2"),
        *("--reallocation", "paper", "--log-prob-threshold", "-5", "--sense-decay", "1e-3"),
    ],
    # sums over the interval are half complete in every second checkpoint
    "lstm_kerbs": [
        *("--hidden-size", "12", "--embed-dim", "12", "--layers", "2", "--dropout", "0.2"),
        *("--reallocation", "released", "--new-sense", "split", "--max-moves", "0.1"),
        *("--update-freq", "2", "--amp"),
    ],
}
COMMON = [
    *("--user-dir", str(ROOT / "fairseq_kerbs"), "--criterion", "kerbs_cross_entropy"),
    *("--optimizer", "adam", "--lr", "0.01", "--clip-norm", "1.0", "--cpu", "--num-workers", "0"),
    *("--max-tokens", "60", "--max-tokens-valid", "200"),
    *("--reallocation-interval", "2", "--seed", "3", "--log-format", "simple"),
]
SCHEDULE = ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4"]
KILLS = {
    "gru_kerbs": [],
    "transformer_kerbs": ["save 2", "copy checkpoint_last"],
    "lstm_kerbs": ["before save 2"],
}
PLATEAU = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-threshold", "0.99", "--lr-shrink", "0.5"]
SAVING = ["--save-interval-updates", str(EVERY)]


def run(data: Path, folder: Path, arch: str, *flags: str, **more: Any) -> Run:
    """A training that adds to the log beside its folder."""
    arguments = [str(data), *COMMON, "--arch", arch, *MODELS[arch], *flags]
    arguments += ["--save-dir", str(folder)]
    return {"arguments": arguments, "log": f"{folder}.log", **more}


def load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state


def assert_same(found: Any, expected: Any, name: str = "") -> int:
    """Same bits in all that a training goes on from; returns the number of tensors."""
    if torch.is_tensor(expected):
        if not name.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            assert torch.equal(found, expected), name
        return 1
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        return sum(assert_same(found[key], expected[key], f"{name}/{key}") for key in expected)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), name
        pairs = zip(found, expected, strict=True)
        return sum(assert_same(one, other, name) for one, other in pairs)
    assert found == expected, name
    return 0


def what_lasts(path: Path) -> dict[str, Any]:
    """All of a checkpoint but flags and times."""
    state = load(path)
    extra = state["extra_state"]
    kept = {name: extra[name] for name in ("train_iterator", "val_loss", "best")
            if name in extra}  # fmt: skip
    names = ("model", "last_optimizer_state")
    history = state["optimizer_history"][-1]  # the others name earlier starts
    return {name: state[name] for name in names} | {"extra": kept, "history": history}


def moves(log: Path) -> list[str]:
    return re.findall(r"reallocation after .*", log.read_text())


def loaded(folder: Path) -> list[int]:
    """Numbers of updates that a training went on from."""
    text = folder.with_suffix(".log").read_text()
    return [int(done) for done in re.findall(r"Loaded checkpoint .* @ (\d+) updates", text)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all trainings: of each architecture straight, resumed and killed."""
    folder = tmp_path_factory.mktemp("resume")
    data, runs = binarize(folder), []
    for arch, kills in KILLS.items():
        (folder / arch).mkdir()
        plan: list[Any] = [("straight", WHOLE, {}), ("resumed", HALF, {}), ("resumed", WHOLE, {})]
        plan += [("killed", WHOLE, {"kill": kill}) for kill in kills]
        plan += [("killed", WHOLE, {})] if kills else []
        for name, updates, more in plan:
            flags = [*SCHEDULE, *SAVING, "--max-update", str(updates)]
            runs.append(run(data, folder / arch / name, arch, *flags, **more))
    flags = [*PLATEAU, "--no-epoch-checkpoints", "--max-epoch"]
    for name, epochs in (("plateau", "3"), ("plateau_resumed", "2"), ("plateau_resumed", "3")):
        runs.append(run(data, folder / name, "transformer_kerbs", *flags, epochs))
    expected = [-9 if "kill" in each else 0 for each in runs]
    found = trainings(runs)
    assert found == expected, "\n".join(log.read_text() for log in folder.rglob("*.log"))
    return folder


@pytest.mark.parametrize("arch", MODELS)
def test_every_interruption_leads_to_the_same_bits(arch: str, done: Path) -> None:
    straight, resumed, killed = (done / arch / name for name in ("straight", "resumed", "killed"))
    middle = load(straight / "checkpoint_1_3.pt")
    assert middle["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    made = moves(straight.with_suffix(".log"))
    if arch == "gru_kerbs":
        assert all(re.search(r"[1-9]\d* senses placed on clusters", move) for move in made)
        assert "decoder.output.sample_kept" in middle["model"]
        assert made
    else:  # senses moved whenever an interval had ended, if an update followed
        assert len(made) == WHOLE // 2 - 1
    assert loaded(resumed) == [HALF]
    # killed before a save, in the middle of it or of a copy: always at 6
    assert not KILLS[arch] or loaded(killed) == [EVERY] * len(KILLS[arch])
    files = sorted(path.name for path in straight.glob("*.pt"))
    assert len(files) > 4
    for name in files:
        expected = what_lasts(straight / name)
        assert assert_same(what_lasts(resumed / name), expected) > 40
        if KILLS[arch]:
            assert_same(what_lasts(killed / name), expected)


def test_the_schedule_hears_of_an_epoch_that_ended_with_the_training(done: Path) -> None:
    """Every epoch after the first counts as a plateau, so the rate of the third is halved."""
    expected = what_lasts(done / "plateau" / "checkpoint_last.pt")
    found = what_lasts(done / "plateau_resumed" / "checkpoint_last.pt")
    for state in (found, expected):
        assert state["last_optimizer_state"]["param_groups"][0]["lr"] == 0.005
        state["history"]["lr_scheduler_state"].pop("last_epoch")  # counted, and never looked at
    assert_same(found, expected)
