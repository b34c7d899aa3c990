"""Commands that pages and the help of commands print, in their order, as a shell reads them."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from fairseq_kerbs.cli.commands import root
from tests.helpers.cli import parsed
from tests.helpers.commands import ROOT

PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:fairseq-[a-z-]+|scripts/\S+\.(?:sh|py)|make|mutmut|pip"
    r"|python|torchrun|srun|source|export|pre-commit)(?= |$)"
)
"""The first word of a command. Elsewhere a block of a page shows output or an equation."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """Commands in indented blocks, with continued lines as one."""
    joined = _FENCE.sub("", text).replace("\\\n", " ")
    lines = re.findall(r"^ {4,}(\S.*)$", joined, re.MULTILINE)
    return [re.sub(r" {2,}", " ", line).strip() for line in lines if PROGRAM.match(line)]


def fragments(text: str) -> list[str]:
    """Whole commands in backticks. Names of commands alone, and parts with … are none."""
    found = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    whole = [part for part in found if PROGRAM.match(part) and not _is_mention(part)]
    # tables leave out the name of the program
    short = [f"fairseq-kerbs {part}" for part in found if _is_read_whole(part)]
    return [*whole, *short]


def _is_read_whole(part: str) -> bool:
    """Tell whether a text is a command of ours with all that it needs, but for its program."""
    words = part.split()
    if len(words) < 3 or words[0] not in root.commands or "…" in part:
        return False
    try:
        parsed(*words)
    except click.UsageError:
        return False
    return True


def _is_mention(part: str) -> bool:
    """Tell whether a text in backticks only names a command."""
    words = part.split()
    if "…" in part or len(words) == 1 or "=" in words[-1]:
        return True
    if words[0] != "fairseq-kerbs" or words[1].startswith("-"):
        return False
    command = root.commands[words[1]]
    names = words[2:]
    while isinstance(command, click.Group) and names:
        command = command.commands[names.pop(0)]
    return not names and any(parameter.required for parameter in command.params)


def languages_of_fences(text: str) -> set[str]:
    """Languages of fenced blocks, in which this module looks for no commands."""
    return {language for language, _ in _FENCE.findall(text)}


def commands_of(page: Path) -> list[str]:
    """Commands of a page, each once."""
    text = page.read_text(encoding="utf-8")
    return list(dict.fromkeys([*blocks(text), *fragments(text)]))


def commands_of_help() -> list[str]:
    """Examples in the help of all commands."""
    return [
        f"fairseq-kerbs {line.partition('fairseq-kerbs ')[2]}"
        for command in _leaves(root)
        for line in (command.epilog or "").splitlines()
        if line.strip().startswith("fairseq-kerbs ")
    ]


def _leaves(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _leaves(command)
        else:
            yield command


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "configs" / "README.md",
    ROOT / "scripts" / "fairseq_wheel" / "README.md",
]
