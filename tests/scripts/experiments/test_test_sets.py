"""BLEU on several test sets together, with translations by the real command and made ones."""

from pathlib import Path
from typing import Any

import pytest
from pandas import read_csv

from scripts.experiments import test_sets
from scripts.experiments.test_sets import main

SOURCE = ["ein Hund läuft .", "zwei Männer spielen Fußball .", "eine Frau liest ein Buch ."]
TARGET = ["a dog is running .", "two men play football .", "a woman is reading a book ."]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two test sets, of two and one sentences, and a folder of data with two dictionaries."""
    (tmp_path / "bin").mkdir()
    for language in ("de", "en"):
        (tmp_path / "bin" / f"dict.{language}.txt").write_text("a 1\n")
    for split, lines in (("one", slice(0, 2)), ("two", slice(2, 3))):
        for language, texts in (("de", SOURCE), ("en", TARGET)):
            (tmp_path / f"{split}.{language}").write_text("\n".join(texts[lines]) + "\n")
    (tmp_path / "bin" / "test.de-en.de.idx").touch()
    return tmp_path


def made(configuration: str, data: str, folder: str, lines: list[str]) -> list[str]:
    """The right translations, but for a system called bad, whose second line is wrong."""
    assert lines == SOURCE
    assert configuration == "CONFIG"
    return [TARGET[0], "something else here", TARGET[2]] if "bad" in folder else [*TARGET]


def arguments(work: Path, *systems: str) -> list[str]:
    sets = [str(work / "one"), str(work / "two")]
    given = [part for system in systems for part in ("--system", *system.split())]
    return [str(work / "bin"), "--sets", *sets, *given, "--output", str(work / "scores.csv")]


def test_all_sets_are_scored_together_and_alone(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(test_sets, "translate", made)
    main(arguments(work, "good CONFIG good-1 good-2", "bad CONFIG bad-1 bad-2"))
    rows = read_csv(work / "scores.csv")
    assert len(rows) == 2 * 2 * 3
    assert rows.groupby("set").sentences.first().to_dict() == {"all": 3, "one": 2, "two": 1}
    good = rows[rows.system == "good"]
    bad = rows[rows.system == "bad"].set_index(["folder", "set"]).bleu
    assert (good.bleu.round(6) == 100.0).all()
    assert bad["bad-1", "two"] == pytest.approx(100.0)
    assert bad["bad-1", "one"] < bad["bad-1", "all"] < 100.0
    assert rows[rows.set != "all"].p.isna().all()
    assert rows[(rows.set == "all") & (rows.system == "bad")].p.between(0, 1).all()
    assert rows.signature.str.contains("tok:13a").all()
    printed = capsys.readouterr().out
    assert "p of each seed" in printed
    assert "BLEU: nrefs:1" in printed


@pytest.mark.parametrize(
    ("systems", "missing", "said"),
    [
        (["a CONFIG"], "", "give NAME CONFIG SAVE_DIR"),
        (["a CONFIG x", "a CONFIG y"], "", "twice; give other names"),
        (["a CONFIG x", "b CONFIG y z"], "", "as many folders for each system"),
        (["a CONFIG x"], "two.en", "there is no"),
        (["a CONFIG nothing"], "", "translate ended with status"),
    ],
)
def test_wrong_arguments_are_named(
    systems: list[str], missing: str, said: str, work: Path, capsys: Any
) -> None:
    if missing:
        (work / missing).unlink()
    with pytest.raises(SystemExit) as ended:
        main(arguments(work, *systems))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_sets_must_be_parallel(work: Path, capsys: Any) -> None:
    (work / "one.en").write_text("a dog is running .\n")
    with pytest.raises(SystemExit):
        main(arguments(work, "a CONFIG x"))
    assert "2 lines of de and 1 of en" in capsys.readouterr().err
