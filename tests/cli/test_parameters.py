"""Flags with several values, numbers, and flags that exclude each other."""

import os
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from fairseq_kerbs.cli.parameters import (
    FILE,
    OUTPUT,
    PASS_ON,
    Command,
    Number,
    Several,
    examples,
    is_flag,
    not_with,
)
from fairseq_kerbs.utils.checkpoint_files import check_can_replace
from fairseq_kerbs.utils.errors import UserError


@click.command("read", cls=Command)
@click.argument("first")
@click.argument("others", nargs=-1)
@click.option("--word", type=Several(), default=())
@click.option("--set", "sets", type=Several(), multiple=True)
@click.option("-f", "--file", "files", type=Several(FILE), default=())
@click.option("--title", callback=not_with("--log"))
@click.option("--log", type=FILE, callback=not_with("--title"))
@click.option("--gap", type=Number(min=-2, max=9), default=1.0)
@click.option("--quick", is_flag=True)
def read(**given: Any) -> dict[str, Any]:
    """Return all that is given."""
    return given


def given(*words: str) -> dict[str, Any]:
    """Arguments of the function that a command calls."""
    with read.make_context("read", list(words)) as context:
        return dict(read.invoke(context))


def test_several_values_after_a_flag() -> None:
    """They end at the next flag; a flag that is given again adds its values."""
    found = given("m.pt", "--word", "bank", "seal", "--quick", "--file", "a", "b", "-f", "c")
    assert found["first"] == "m.pt"
    assert found["word"] == ("bank", "seal")
    assert found["quick"]
    assert found["files"] == (Path("a"), Path("b"), Path("c"))
    assert given("m.pt", "--word", "a", "--word", "b", "c")["word"] == ("a", "b", "c")
    assert given("m.pt", "--set", "a", "--set", "b", "c")["sets"] == (("a",), ("b", "c"))
    # one after an equals sign, and none of those after two dashes
    found = given("--word=bank", "m.pt", "--word", "seal", "--", "--word", "n.pt")
    assert found["word"] == ("bank", "seal")
    assert (found["first"], found["others"]) == ("m.pt", ("--word", "n.pt"))
    found = given("m.pt")
    assert (found["word"], found["sets"], found["files"]) == ((), (), ())
    assert not found["quick"]


def test_a_flag_is_no_value() -> None:
    """Otherwise ``--log --title x`` would write a log of that name."""
    for words in (["--log", "--title", "x"], ["--word"], ["--word", "--quick"], ["--gap"]):
        with pytest.raises(click.UsageError, match=f"Option '{words[0]}' requires an argument"):
            given("m.pt", *words)
    assert given("m.pt", "--gap", "-1.5")["gap"] == -1.5
    assert given("m.pt", "--word", "-3", "-", "- a title")["word"] == ("-3", "-", "- a title")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--word", True),
        ("-o", True),
        ("-ofile", True),
        ("--", True),
        ("-x1", True),
        ("-", False),
        ("-1", False),
        ("-1e-5", False),
        ("-.5", False),
        ("word", False),
        ("", False),
        ("- a", False),
    ],
)
def test_what_is_a_flag(text: str, expected: bool) -> None:
    assert is_flag(text) == expected


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "9.5", "-2.5", "a"])
def test_numbers_are_finite_and_in_their_range(text: str) -> None:
    with pytest.raises(click.BadParameter):
        given("m.pt", f"--gap={text}")


def test_flags_that_exclude_each_other() -> None:
    assert given("m.pt", "--title", "x")["title"] == "x"
    assert given("m.pt", "--log", "x")["log"] == Path("x")
    for words in (["--title", "x", "--log", "y"], ["--log", "y", "--title", "x"]):
        with pytest.raises(click.UsageError, match=f"{words[2]} does not go with {words[0]}"):
            given("m.pt", *words)


def test_examples_are_lines_that_click_leaves_alone() -> None:
    long = f"score {'--hypotheses a ' * 9}-f x"
    command = click.Command("a", epilog=examples("a b", long))
    shown = command.get_help(click.Context(command))
    lines = ["  Examples:", "    fairseq-kerbs a b", f"    fairseq-kerbs {long}"]
    assert shown.splitlines()[-4:] == ["", *lines]


@click.command("write", cls=Command, context_settings=PASS_ON)
@click.argument("model", type=FILE)
@click.argument("passed_on", nargs=-1, type=click.UNPROCESSED)
@click.option("--text", type=Several(FILE), default=())
@click.option("--system", metavar="NAME=FILE", multiple=True)
@click.option("-o", "--output", type=OUTPUT)
@click.help_option("-h", "--help")
def write(**given: Any) -> dict[str, Any]:
    """Return all that is given."""
    return given


@pytest.mark.parametrize(
    "reads", [["{file}"], ["m", "--text", "a", "{file}"], ["m", "--system", "a={file}"]]
)
def test_no_command_overwrites_what_it_reads(reads: list[str], tmp_path: Path) -> None:
    file = tmp_path / "read"
    file.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(file)
    hard = tmp_path / "hard"
    os.link(file, hard)
    words = [word.format(file=file) for word in reads]
    for output in (file, link, hard):
        refused = pytest.raises(click.UsageError, match=r"read by this command; name another")
        with write.make_context("write", [*words, "-o", str(output)]) as context, refused:
            write.invoke(context)
    with write.make_context("write", [*words, "-o", str(tmp_path / "new")]) as context:
        assert write.invoke(context)["output"] == tmp_path / "new"


def test_no_command_replaces_a_model_of_a_training_or_data(tmp_path: Path) -> None:
    """But 'convert' replaces a model that it has made."""
    trained = {"model": {}, "cfg": {}, "extra_state": {"previous_training_time": 1.0}}
    torch.save(trained, tmp_path / "checkpoint_last.pt")
    torch.save({"model": {}, "cfg": {}, "extra_state": {}}, tmp_path / "converted.pt")
    (tmp_path / "bin").mkdir()
    for name in ("dict.de.txt", "dict.txt", "test.de-en.de.idx", "train.bin", "notes.txt"):
        (tmp_path / "bin" / name).write_text("mine")
    (tmp_path / "other.bin").write_text("no data")
    (tmp_path / "dictionary.txt").write_text("words")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "converted.pt").read_bytes()[:200])
    refusals = {
        "checkpoint_last.pt": ("is a checkpoint; name", "is a checkpoint of a training; name"),
        "converted.pt": ("is a checkpoint; name", ""),
        "bin/dict.de.txt": ("is a file of binarized data; name", "is a file of binarized data"),
        "bin/dict.txt": ("is a file of binarized data; name", "is a file of binarized data"),
        "bin/test.de-en.de.idx": ("is a file of binarized data; name", "is a file of binarized"),
        "bin/train.bin": ("is a file of binarized data; name", "is a file of binarized data"),
        "bin/notes.txt": ("", ""),
        "other.bin": ("", ""),
        "dictionary.txt": ("", ""),
        "torn.pt": ("", ""),
        "new.pt": ("", ""),
    }
    for name, sentences in refusals.items():
        for by_model, sentence in enumerate(sentences):
            path = tmp_path / name
            if not sentence:
                check_can_replace(path, "-o", by_model=bool(by_model))
                continue
            with pytest.raises(UserError, match=f"-o: .*{name} {sentence}"):
                check_can_replace(path, "-o", by_model=bool(by_model))
    words = ["none", "-o", str(tmp_path / "bin" / "dict.txt")]
    with write.make_context("write", words) as context, pytest.raises(UserError, match="--output"):
        write.invoke(context)


def test_a_short_flag_with_its_value_is_passed_on() -> None:
    """``-szh`` is fairseq's flag of the source language, and does not ask for help."""
    words = ["m", "-szh", "--beam", "2", "-ten", "-omine"]
    with write.make_context("write", words) as context:
        found = write.invoke(context)
    assert sorted(found["passed_on"]) == ["--beam", "-szh", "-ten", "2"]
    assert found["output"] == Path("mine")
