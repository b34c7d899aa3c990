"""Every command that a page or a help prints is run as printed, or stands in a list with a reason.

A folder has what the words of the pages stand for: ``DATA`` is a folder of data, and so on. Each
page has such a folder of its own, in which a shell runs its commands in their order. Trainings are
cut short by flags behind the printed ones, which are the only change.
"""

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import HANGS
from tests.helpers.cli import Folders
from tests.helpers.commands import ROOT, make_checkout, standing_in
from tests.helpers.page_commands import (
    PAGES,
    commands_of,
    commands_of_help,
    languages_of_fences,
)
from tests.helpers.tiny_language_models import make_bert

pytestmark = pytest.mark.slow

INSTALLS = "installs packages"
DEVELOPS = "checks or installs this project, which is being tested"
DOWNLOADS = "downloads a corpus; tests/data/test_corpora.py serves a small one"
RELEASED = (
    "reads a released archive, whose digest is checked; tests/data/test_corpora.py has a small"
)
TABLES = "trains for hours; tests/scripts/tables/test_reproduce.py runs it on small corpora"
SEVERAL = "needs several machines"
GPU = "needs a GPU"

NOT_RUN = {
    r"(\S+=\S+ )?pip install ": INSTALLS,
    r"scripts/install\.sh": INSTALLS,
    r"make |scripts/(test|release)\.sh": DEVELOPS,
    r"(\.venv/bin/)?python -m pytest ": DEVELOPS,
    r".* mutmut run": DEVELOPS,
    r"scripts/quickstart\.sh": "installs and trains; tests/end_to_end/test_scripts.py runs it",
    r"scripts/reproduce_tables\.sh ": TABLES,
    r"fairseq-kerbs self-check": "takes minutes; tests/cli/test_self_check.py runs it",
    r"fairseq-hydra-train ": "tests/end_to_end/test_fairseq_commands.py runs it as printed",
    r"scripts/experiments/gold_labels\.py ": "reads a released list; tests/data/test_gold.py",
    r"torchrun |srun ": SEVERAL,
    r"fairseq-kerbs train iwslt16/transformer_one_gpu .* --max-tokens 4096": GPU,
    r"fairseq-kerbs prepare-(iwslt16|dailydialog) ": RELEASED,
    r"fairseq-kerbs prepare-(lm1b|multi30k|wikitext2) ": DOWNLOADS,
}
"""Commands that are not run, and why."""

SHORT = "--max-update 4 --max-tokens 400 --encoder-layers 1 --decoder-layers 1 --cpu"
CUTS = {
    r"fairseq-kerbs train \S*(lstm|gru)\S* (?!.*--dry-run)": "--max-update 2 --hidden-size 8 --cpu",
    r"(\.venv/bin/)?fairseq-kerbs train (?!.*--dry-run)": SHORT,
    r"fairseq-train ": SHORT,
    r"(fairseq-kerbs )?(fairseq-)?(generate|translate) ": "--beam 2 --max-len-b 9 --cpu",
    r"fairseq-eval-lm ": "--cpu",
    r"fairseq-kerbs toy text ": "--train 40 --valid 5 --test 5",
    r"\.venv/bin/fairseq-kerbs toy ": "--train 400",
    r"(\.venv/bin/)?fairseq-kerbs prepare(-lm)? ": "--workers 1",
}
"""Flags behind those of a command that are its only change. Of two, the first is taken."""

VALUES = {
    "--reallocation NAME": "--reallocation clusters",
    "--kernel NAME": "--kernel lin",
}
"""Placeholders that stand for the name of a part."""

PAIRS = {
    "a car is a vehicle .": "ein auto ist ein fahrzeug .",
    "the computer has a monitor .": "der computer hat einen monitor .",
    "the dog is an animal in spring .": "der hund ist ein tier im frühling .",
    "the dog sits on the bank of the river .": "der hund sitzt am ufer des flusses .",
    "the bank has money .": "die bank hat geld .",
}
"""Sentences with the words that pages name."""
ORDER = ("toy", "prepare", "prepare-lm", "train", "generate", "translate", "human-eval export")
"""Commands whose output others read, so that their examples come first."""


def shell(command: str, folder: Path) -> str:
    """All that a command prints in a folder, with status 0."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=standing_in(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


def cut(command: str) -> str:
    """A command with the flags that cut it short, before its redirections and its comment."""
    for written, meant in VALUES.items():
        command = command.replace(written, meant)
    flags = next((flags for pattern, flags in CUTS.items() if re.match(pattern, command)), "")
    found = re.match(r"(.*?)((?: [<>#] ?.*)?)$", command)
    assert found is not None
    return f"{found[1]} {flags}{found[2]}"


def reason_not_to_run(command: str) -> str | None:
    return next((why for what, why in NOT_RUN.items() if re.match(what, command)), None)


# ------------------------------------------------------------------ what the pages' words stand for


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: Folders) -> Path:
    """Text, data of ``prepare``, a Transformer of fairseq, and a KerBS model with a small text."""
    folder = tmp_path_factory.mktemp("pages")
    shell("fairseq-kerbs toy corpus --train 240 --valid 12 --test 48", folder)
    for split, times in (("train", 45), ("valid", 1), ("test", 1)):
        for language, lines in (("de", PAIRS.values()), ("en", PAIRS.keys())):
            with (folder / "corpus" / f"{split}.{language}").open("a") as stream:
                stream.writelines(f"{line}\n" for line in [*lines] * times)
    sources = "--train corpus/train --valid corpus/valid --test corpus/test --workers 1"
    languages = "--source-lang de --target-lang en --bpe none --dest prepared"
    shell(f"fairseq-kerbs prepare {sources} {languages}", folder)
    (folder / "DATA").symlink_to("prepared/bin")
    short = "--optimizer adam --lr 0.01 --max-tokens 400 --max-update 4 --cpu --num-workers 0"
    sizes = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-layers 1 --decoder-layers 1"
    shell(
        f"fairseq-train DATA --arch transformer {sizes} {short} --save-dir stock "
        "--criterion label_smoothed_cross_entropy",
        folder,
    )
    shutil.copy(folder / "stock" / "checkpoint_last.pt", folder / "checkpoint_best.pt")
    shell(f"fairseq-kerbs train toy DATA kerbs_model {SHORT}", folder)
    make_checkout(folder)
    (folder / ".venv" / "bin" / "activate").touch()
    for source, names in TEXTS.items():
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(folder / "corpus" / source, folder / name)
    return folder


TEXTS = {
    "test.de": ("new.de", "test.de", "S"),
    "test.en": (
        "test.en",
        "R",
        "A",
        "B",
        "OUT",
        "a.txt",
        "b.txt",
        "softmax.txt",
        "kerbs.txt",
        "data/dd/raw/test.en",
        "wikitext-2/test.txt",
        "sentences/test.txt",
    ),
    "valid.de": ("valid.de",),
    "valid.en": ("valid.en", "wikitext-2/valid.txt", "sentences/valid.txt"),
    "train.de": ("train.de", "train.cs"),
    "train.en": ("train.en", "clean/train.en", "wikitext-2/train.txt", "sentences/train.txt"),
}
"""Names of texts in the pages, by the text of the corpus that they have."""


@pytest.fixture
def stage(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared folder."""
    return shutil.copytree(prepared, tmp_path / "stage", symlinks=True)


def rate(folder: Path, *names: str) -> None:
    """Fill in the sheets of raters, under other names if these are given."""
    for number, sheet in enumerate(
        sorted([*folder.glob("sheets/*.csv"), *folder.glob("DIR/*.csv")]), start=1
    ):
        text = sheet.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        begin = next(at for at, row in enumerate(rows) if row[:1] == ["item"]) + 1
        for at, row in enumerate(rows[begin:]):
            row[-1] = str((at + number) % 3)
        stream = io.StringIO(newline="")
        csv.writer(stream).writerows(rows)
        target = folder / names[number - 1] if names else sheet
        target.write_text("\ufeff" + stream.getvalue(), encoding="utf-8")


def sheets_of_table_1(folder: Path) -> None:
    """Sheets and key as the script of the tables writes them, filled in."""
    (folder / "runs" / "results").mkdir(parents=True, exist_ok=True)
    key = "runs/results/sheets_small_key.json"
    systems = "--system softmax=A --system kerbs=B --items 5"
    shell(
        f"fairseq-kerbs human-eval export --source S {systems} --sheets sheets --key {key}", folder
    )
    rate(folder)


def other_models(folder: Path) -> None:
    """Models beside that of the toy configuration, on the same data."""
    kinds = {
        "softmax": "--output-layer softmax",
        "lin": "--kernel lin --reallocation none",
        "mixture": "--output-layer mixture",
    }
    for name, flags in kinds.items():
        shell(f"fairseq-kerbs train toy data/bin runs/{name} {flags} {SHORT}", folder)
        shutil.copy(folder / "runs" / name / "checkpoint_last.pt", folder / f"{name}.pt")


def bert(folder: Path) -> None:
    """A small model of Hugging Face."""
    shutil.copy(folder / "corpus" / "train.en", folder / "FILE")
    for name in ("MODEL", "models/bert-base-uncased"):
        (folder / name).parent.mkdir(exist_ok=True)
        make_bert(folder / name)


def begin_anew(folder: Path) -> None:
    """Leave the folder of another training."""
    shutil.rmtree(folder / "SAVE_DIR", ignore_errors=True)
    shutil.copy(ROOT / "configs" / "toy.yaml", folder / "CONFIG")
    text = (folder / "CONFIG").read_text().replace("extends: ", f"extends: {ROOT}/configs/")
    (folder / "CONFIG").write_text(text)


def model_of_a_table(folder: Path) -> None:
    """A KerBS model as ``MODEL``, and its translations."""
    path = folder / "MODEL"
    if path.is_dir():
        shutil.rmtree(path)
    shutil.copy(folder / "kerbs_model" / "checkpoint_best.pt", path)
    flags = "--beam 2 --max-len-b 9 --cpu --print-senses"
    shell(f"fairseq-kerbs generate toy DATA kerbs_model {flags} --output generated.txt", folder)


BEFORE: dict[str, Callable[[Path], object]] = {
    "fairseq-kerbs human-eval score --key runs": sheets_of_table_1,
    "fairseq-kerbs human-eval score --key key.json sheets": rate,
    "fairseq-kerbs human-eval score --key key.json --baseline a rater": (
        lambda folder: rate(folder, "rater1.csv", "rater2.csv", "rater3.csv")
    ),
    "fairseq-kerbs plot contexts MODEL --text": bert,
    "fairseq-kerbs plot contexts models": bert,
    "fairseq-kerbs train CONFIG": begin_anew,
    "fairseq-kerbs train multi30k/transformer_kerbs DATA SAVE_DIR --kernel": begin_anew,
    "fairseq-kerbs train multi30k/transformer_kerbs DATA SAVE_DIR --reallocation": begin_anew,
    "fairseq-kerbs train multi30k/transformer_senses DATA SAVE_DIR": begin_anew,
    "fairseq-kerbs train multi30k/transformer_softmax_senses DATA SAVE_DIR": begin_anew,
    "fairseq-kerbs convert softmax.pt": other_models,
    "fairseq-kerbs report MODEL": model_of_a_table,
    "fairseq-kerbs train iwslt16/transformer_one_gpu": (
        lambda folder: shutil.copytree(folder / "DATA", folder / "data" / "iwslt16" / "bin")
    ),
}
"""What is done before a command that begins so, because other pages or people do it."""


def run_all(commands: list[str], stage: Path) -> None:
    """Run the commands that can be run, in their order."""
    placed = ""
    for command in commands:
        if reason_not_to_run(command) is not None:
            continue
        for start, before in BEFORE.items():
            if command.startswith(start):
                before(stage)
        words = cut(command.replace("--total-senses F", f"--total-senses {placed}"))
        output = shell(words, stage)
        if "convert" in command:  # whose last line has it
            placed = re.findall(r"--total-senses (\S+)", output)[-1]
        if "train" in command.split()[:2] or command.startswith("fairseq-train"):
            for name in ("LOG", "train.log"):
                (stage / name).write_text(output)


RUN = [page for page in PAGES if not all(map(reason_not_to_run, commands_of(page)))]
"""Pages with a command that is run."""


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page(page: Path, stage: Path) -> None:
    run_all(commands_of(page), stage)


def test_the_examples_in_the_help(stage: Path) -> None:
    """Those that write what others read come first."""

    def place(command: str) -> tuple[int, str]:
        found = [
            at for at, name in enumerate(ORDER) if command.startswith(f"fairseq-kerbs {name} ")
        ]
        return min(found, default=len(ORDER)), command

    shutil.rmtree(stage / "data")  # that of another page
    run_all(sorted(commands_of_help(), key=place), stage)


def test_every_reason_is_needed() -> None:
    """Commands that are run need none, and no reason is about a command that is gone."""
    commands = {command for page in PAGES for command in commands_of(page)}
    commands |= {*commands_of_help()}
    for pattern in (*NOT_RUN, *CUTS):
        assert any(re.match(pattern, command) for command in commands), pattern
    for start in BEFORE:
        assert any(command.startswith(start) for command in commands), start
    for why in NOT_RUN.values():
        for test in re.findall(r"tests/\S+\.py", why):
            assert (ROOT / test).is_file()
    assert sum(reason_not_to_run(command) is None for command in commands) >= 60


def test_no_command_is_hidden_in_a_fence() -> None:
    found = set().union(*(languages_of_fences(page.read_text("utf-8")) for page in PAGES))
    assert found <= {"python", "yaml", "bibtex"}
