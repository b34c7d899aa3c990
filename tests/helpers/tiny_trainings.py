"""Tiny parallel text, models for it, and what fairseq's commands print of them."""

import random
import re
from pathlib import Path
from typing import NamedTuple

from tests.helpers.commands import USER_DIR

WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
TEST_PAIRS, UPDATES = 20, 2

TRANSFORMER = """
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16
    --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32
    --encoder-attention-heads 2 --decoder-attention-heads 2
""".split()  # noqa: SIM905
LSTM = """
    --encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16
    --decoder-hidden-size 16 --decoder-out-embed-dim 16
""".split()  # noqa: SIM905
FLAGS = {
    "transformer": TRANSFORMER,
    "lstm": LSTM,
    "transformer_kerbs": [*TRANSFORMER, "--reallocation-interval", "2"],
    "lstm_kerbs": ["--hidden-size", "16", "--embed-dim", "16", "--reallocation-interval", "2"],
}
COMMON = [
    "--optimizer",
    "adam",
    "--lr",
    "0.01",
    "--max-tokens",
    "100",
    "--cpu",
    "--seed",
    "3",
    "--num-workers",
    "0",
    "--log-format",
    "simple",
    "--log-interval",
    "1",
]
DECODING = ["--batch-size", "7", "--max-len-b", "12", "--cpu"]


def criterion(arch: str) -> list[object]:
    """Ours needs the plugin."""
    smoothing = ["--label-smoothing", "0.1", "--criterion"]
    if arch.endswith("_kerbs"):
        return [*smoothing, "kerbs_cross_entropy", *USER_DIR]
    return [*smoothing, "label_smoothed_cross_entropy"]


def training(data: Path, arch: str, save_dir: Path) -> list[object]:
    """Arguments of fairseq-train."""
    flags = [*COMMON, "--arch", arch, *FLAGS[arch], *criterion(arch)]
    return [data, *flags, "--max-update", UPDATES, "--save-dir", save_dir]


def figure(pattern: str, output: str) -> float:
    """The last number that `pattern` captures in `output`."""
    found = re.findall(pattern, output)
    assert found, f"no {pattern} in:\n{output[-3000:]}"
    return float(found[-1])


def hypotheses(output: str) -> dict[int, str]:
    """Sentence number to best hypothesis, from what fairseq-generate or -interactive printed."""
    found = re.findall(r"^D-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    return {int(number): text for number, text in found}


def sources() -> list[str]:
    """Sentences of unequal lengths, so that every batch has padding."""
    rng = random.Random(11)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(120)]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


class Trained(NamedTuple):
    """A model after its first updates, and what fairseq-train printed."""

    folder: Path
    checkpoint: Path
    output: str
