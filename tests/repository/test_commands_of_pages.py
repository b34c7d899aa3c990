"""Commands that pages show are read by click, and their flags of fairseq by fairseq's parser."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_kerbs.configurations import Flags, find_configuration, load_experiment
from fairseq_kerbs.models import check_flags_of_model
from fairseq_kerbs.program_checks import check_flags
from fairseq_kerbs.programs import GENERATE, TRAIN, read_call
from tests.helpers.cli import parsed
from tests.helpers.commands import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
PAGES += [*ROOT.glob("results/*/README.md"), *ROOT.glob("fairseq_kerbs/**/*.md")]
PLACEHOLDERS = {"S": "1", "N": "20", "LR": "1e-3", "F": "2.5", "NAME": "lin", "FLAGS": "--quiet"}
"""What stands for a value in a page, and a value."""
PROGRAMS = "fairseq-kerbs|fairseq-train|fairseq-generate|scripts/train.sh|scripts/generate.sh"


def commands() -> Iterator[tuple[str, str]]:
    """Page and command, of blocks of code and of texts in backticks."""
    for page in sorted(PAGES):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found = re.findall(rf"^ *((?:\S*/)?(?:{PROGRAMS}) [^`\n]*)$", text, re.MULTILINE)
        found += re.findall(rf"`((?:{PROGRAMS}) [^`\n]*)`", text)
        for command in dict.fromkeys(found):
            # with a positional argument at least, and nothing left out
            if len(command.split()) > 2 and "…" not in command:
                yield str(page.relative_to(ROOT)), command


COMMANDS = sorted(commands())


def words_of(command: str) -> list[str]:
    """Words of a command, without comments, redirections and what follows a pipe."""
    words = shlex.split(command.replace('"$(fairseq-kerbs user-dir)"', "USER_DIR"), comments=True)
    ends = [words.index(sign) for sign in ("<", ">", "|") if sign in words]
    kept = words[: min(ends, default=len(words))]
    read = []
    for before, word in zip(["", *kept], kept):
        policy = before == "--reallocation" and word == "NAME"
        read.append("clusters" if policy else PLACEHOLDERS.get(word, word))
    return read


def flags_are_read(program: str, data: str, flags: Flags, extra: list[str]) -> None:
    """Check them as the command does, as far as no file is needed."""
    call = read_call(program, data, flags, extra)
    check_flags(call)
    if program == TRAIN:
        check_flags_of_model(call.values)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[": ".join(c)[:90] for c in COMMANDS])
def test_a_command_of_a_page_is_read(page: str, command: str) -> None:
    program, *words = words_of(command)
    if program.endswith(".sh"):
        words.insert(0, Path(program).stem)
        program = "fairseq-kerbs"
    if program in (TRAIN, GENERATE):
        at = words.index("--user-dir")
        del words[at : at + 2]
        flags_are_read(program, words[0], {}, words[1:])
        return
    fragments = ("convert --data DATA --total-senses 3", "human-eval export")
    former = ("neighbours SOFTMAX KERBS",)
    if " ".join(words) in (*fragments, *former) or words[-1] == "--finetune-from-model":
        pytest.skip("it names a part of a command, or a command of a former revision")
    given = parsed(*words).params
    if words[0] in ("train", "generate", "translate") and str(given["config"]) != "CONFIG":
        experiment = load_experiment(find_configuration(given["config"]))
        of_train: Flags = {"save-dir": given["save_dir"], **experiment.train}
        of_generation: Flags = {"path": "x.pt", **experiment.generate}
        kind = TRAIN if words[0] == "train" else GENERATE
        flags = of_train if kind == TRAIN else of_generation
        flags_are_read(kind, given["data"], flags, list(given["passed_on"]))


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 60
