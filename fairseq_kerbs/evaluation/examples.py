"""Outputs of several systems side by side, as in the paper's Tables 3 and 4, chosen by a rule.

- ``differing``: random lines among those with the most different outputs. Lines where all systems
  agree are never chosen.
- ``best``: the lines with the largest gains of the last system over the baseline in sentence chrF.
  They are not representative, so the rule must be stated beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from sacrebleu.metrics.chrf import CHRF

from fairseq_kerbs.evaluation.texts import escape_markdown, shown
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel

Choice = Literal["differing", "best"]
Texts = Sequence[str]


@dataclass(frozen=True)
class Example:
    """A line of the test set with the outputs of the systems."""

    line: int  # from 1
    source: str
    reference: str | None
    answers: dict[str, str]  # by system
    scores: dict[str, float] = field(default_factory=dict)  # by system, for ``best``

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts of source, reference and systems, each text on one line."""
        texts = [("Source", self.source), ("Reference", self.reference), *self.answers.items()]
        return [(name, shown(text)) for name, text in texts if text is not None]

    def title(self) -> str:
        """Line number and scores."""
        listing = ", ".join(f"{name} {score:.1f}" for name, score in self.scores.items())
        return f"line {self.line}" + (f" ({listing})" if listing else "")


def side_by_side(
    sources: Texts,
    references: Texts | None,
    systems: Mapping[str, Texts],
    choose: Choice,
    number: int,
    seed: int,
    baseline: str | None = None,
) -> list[Example]:
    """Choose at most ``number`` lines of parallel raw texts by a rule.

    For ``best``, the last system is compared with the ``baseline``, by default the first one, and
    examples are ordered by decreasing gain, otherwise as in the texts. A UserError is raised if
    numbers of lines differ, the baseline is unknown, or ``best`` has no references.
    """
    texts = {"--source": sources, **{f"--system {name}": text for name, text in systems.items()}}
    check_parallel(texts if references is None else {**texts, "--reference": references})
    scores: dict[int, dict[str, float]] = {}
    if choose == "best":
        scores = _gains(systems, references, number, baseline or next(iter(systems)))
        lines = list(scores)
    else:
        if len(systems) < 2:
            raise UserError(
                "--choose differing draws lines where systems differ: give two --system or more"
            )
        distinct = [len(set(map(shown, answers))) for answers in zip(*systems.values())]
        drawn = [line for line, count in enumerate(distinct) if count > 1]
        Random(seed).shuffle(drawn)
        lines = sorted(sorted(drawn, key=lambda line: -distinct[line])[:number])
    return [
        Example(
            line=line + 1,
            source=sources[line],
            reference=None if references is None else references[line],
            answers={name: answers[line] for name, answers in systems.items()},
            scores=scores.get(line, {}),
        )
        for line in lines
    ]


def _gains(
    systems: Mapping[str, Texts], references: Texts | None, number: int, baseline: str
) -> dict[int, dict[str, float]]:
    """Scores of the last system and the baseline on the lines with the largest gains, in order."""
    if references is None or len(systems) < 2:
        raise UserError("--choose best needs --reference and two systems")
    if baseline not in [*systems][:-1]:
        earlier = ", ".join([*systems][:-1])
        raise UserError(f"--baseline {baseline} is none of the systems before the last, {earlier}")
    pair = (list(systems)[-1], baseline)
    scorer = CHRF()
    scores = {
        line: {name: scorer.sentence_score(systems[name][line], [text]).score for name in pair}
        for line, text in enumerate(references)
    }
    gains = {line: scores[line][pair[0]] - scores[line][pair[1]] for line in scores}
    best = sorted(gains, key=lambda line: -gains[line])[:number]
    return {line: scores[line] for line in best if gains[line] > 0}


def rule_text(examples: Sequence[Example], lines: int, choose: Choice, seed: int) -> str:
    """A sentence about the rule by which examples were chosen from ``lines`` lines."""
    start = f"{len(examples)} of {lines} lines"
    if choose == "differing":
        return f"{start}, drawn from those with the most different answers (seed {seed})."
    if not examples:
        return f"{start} have a gain in sentence chrF."
    system, baseline = examples[0].scores
    return f"{start}: the largest gains of {system} over {baseline} in sentence chrF."


def as_markdown(examples: Sequence[Example]) -> str:
    """A Markdown table per example, with markup in texts escaped."""
    tables = []
    for example in examples:
        rows = [f"| {' | '.join(map(escape_markdown, row))} |" for row in example.rows()]
        tables.append(
            "\n".join([f"| | {escape_markdown(example.title())} |", "| --- | --- |", *rows, ""])
        )
    return "\n".join(tables)


def as_text(examples: Sequence[Example]) -> str:
    """Examples as text for a terminal."""
    blocks = []
    for example in examples:
        width = max(len(name) for name, _ in example.rows()) + 2
        rows = [f"  {name:<{width}}{text}".rstrip() for name, text in example.rows()]
        blocks.append("\n".join([example.title(), *rows, ""]))
    return "\n".join(blocks)
