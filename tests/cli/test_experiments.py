"""Arguments of commands that pass flags on to fairseq; the table of misuses has more."""

import shlex
from pathlib import Path

import pytest

from fairseq_kerbs.cli.experiments import naming_files
from fairseq_kerbs.configurations import Experiment
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Capsys, kerbs, parsed


def test_flags_passed_on_keep_their_order_and_are_not_abbreviations_of_ours() -> None:
    command = "generate c d s --beam 3 --dry-run --ref x --out=y -s de -t en --lenpen -1 --lr -1e-5"
    given = parsed(*command.split()).params
    passed_on = "--beam 3 --ref x --out=y -s de -t en --lenpen -1 --lr -1e-5"
    assert given["passed_on"] == tuple(passed_on.split())
    assert given["dry_run"]
    assert given["reference"] is None
    assert given["output"] is None
    assert (str(given["config"]), given["data"], given["save_dir"]) == ("c", "d", "s")


@pytest.mark.parametrize("name", ["train", "generate", "translate"])
def test_what_is_refused_before_fairseq_starts(name: str, capsys: Capsys) -> None:
    refused = {
        "toy data": "missing argument 'SAVE_DIR'",
        "toy data --lr 1": "missing argument 'SAVE_DIR'",
        "--lr 1 toy data save": "missing argument 'CONFIG'",
        "toy --lr 1 data save": "missing argument 'DATA'",
        "toy data a:b": "invalid value for 'SAVE_DIR': a:b has ':' or '${', which fairseq",
        "toy data '${oc.env:X}'": "invalid value for 'SAVE_DIR': ${oc.env:X} has ':' or '${'",
    }
    for arguments, sentence in refused.items():
        said = kerbs(capsys, name, *shlex.split(arguments), status=2)
        assert said.startswith(f"fairseq-kerbs {name}: error: {sentence}")
        assert said.count("\n") == 1


def test_a_flag_of_the_command_line_is_in_no_file() -> None:
    file = Path("mine.yaml")
    names = ("lr", "max-sentences", "source-lang", "adam-eps")
    experiment = Experiment((file,), {}, {}, None, {("train", name): file for name in names})
    cases: list[tuple[str, tuple[str, ...], str | None]] = [
        ("--lr", (), "--lr"),
        ("--lr", ("--lr", "y"), None),
        ("--lr", ("--lr=y",), None),
        ("--batch-size", (), "--max-sentences"),  # two names of one flag
        ("--batch-size", ("--max-sentences", "9"), None),
        ("--max-sentences", ("--batch-size", "9"), None),
        ("--source-lang", ("-sde",), None),
        ("--source-lang", ("--lr", "y"), "--source-lang"),
        ("--adam-eps", (), "--adam-eps"),
        ("--adam-eps", ("--adam-eps=x",), None),
        ("--beam", (), None),
    ]
    for flag, passed_on, named in cases:
        with pytest.raises(UserError) as refusal, naming_files(experiment, "train", passed_on):
            raise UserError(f"argument {flag}: invalid value", "fairseq-train")
        place = "" if named is None else f" ({named} is in mine.yaml)"
        assert str(refusal.value) == f"argument {flag}: invalid value{place}"
        assert refusal.value.program == "fairseq-train"
