"""Answers of several systems side by side, as in the paper's Tables 3 and 4, chosen by a rule.

- ``random``: lines drawn with a seed.
- ``differing``: lines drawn with a seed, those with the most different answers first; lines to
  which all systems answer the same are never chosen.
- ``best``: the lines where one system's sentence score exceeds the baseline's by most. They show
  what a system can do, not what it does on average; the rule is to be stated beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_kerbs.evaluation.texts import (
    check_lengths,
    csv_text,
    escape_markdown,
    harmless_cell,
    shown,
)
from fairseq_kerbs.utils.errors import UserError

Choice = Literal["differing", "best", "random"]
Metric = Literal["chrf", "bleu"]


@dataclass(frozen=True)
class Example:
    """One line of the test set."""

    line: int  # from 1
    source: str
    reference: str | None
    answers: dict[str, str]  # by system
    scores: dict[str, float] = field(default_factory=dict)  # 0 to 100, of those compared (``best``)

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts, from the source to the last system, each text on one line."""
        texts = [("Source", self.source)]
        if self.reference is not None:
            texts.append(("Reference", self.reference))
        return [(name, shown(text)) for name, text in [*texts, *self.answers.items()]]

    def title(self) -> str:
        """The line's number, and the scores if any."""
        listing = ", ".join(f"{name} {score:.1f}" for name, score in self.scores.items())
        return f"line {self.line}" + (f" ({listing})" if listing else "")


def side_by_side(
    sources: Sequence[str],
    references: Sequence[str] | None,
    systems: Mapping[str, Sequence[str]],
    choose: Choice,
    number: int,
    seed: int,
    *,
    system: str | None = None,
    baseline: str | None = None,
    metric: Metric = "chrf",
) -> list[Example]:
    """Choose lines and put the systems' answers side by side.

    Args:
        sources: raw inputs, one a line.
        references: raw references, parallel to `sources`; None if there are none.
        systems: raw answers of each system, by name, parallel to `sources`.
        choose: the rule, see the head of this file.
        number: most lines to choose; fewer fit the rule in a small or uniform test set.
        seed: for ``random`` and ``differing``.
        system: for ``best``, the system whose gain counts; by default the last one.
        baseline: for ``best``, what it is compared with; by default the first one.
        metric: for ``best``, the sentence score.

    Returns:
        examples in the order of the test set; for ``best``, the largest gain first, gains only.

    Raises:
        UserError: there is no system, numbers of lines differ, `number` is below 1, the name
            is unknown, or ``best`` has no references or compares a system with itself.
    """
    if not systems:
        raise UserError("--system: name at least one system")
    texts = {"--source": sources, **{f"--system {name}": own for name, own in systems.items()}}
    check_lengths(texts if references is None else {**texts, "--reference": references})
    if number < 1:
        raise UserError(f"--number is {number}, but must be at least 1")
    scores: dict[int, dict[str, float]] = {}
    if choose == "random":
        chosen = Random(seed).sample(range(len(sources)), min(number, len(sources)))
    elif choose == "differing":
        chosen = _most_different(list(systems.values()), number, seed)
    else:
        pair = _compared(systems, system, baseline)
        if references is None:
            raise UserError("--choose best needs --reference")
        scores = _gains({name: systems[name] for name in pair}, references, number, metric)
        chosen = list(scores)
    return [
        Example(
            line=index + 1,
            source=sources[index],
            reference=None if references is None else references[index],
            answers={name: own[index] for name, own in systems.items()},
            scores=scores.get(index, {}),
        )
        for index in (chosen if choose == "best" else sorted(chosen))
    ]


def _most_different(answers: Sequence[Sequence[str]], number: int, seed: int) -> list[int]:
    distinct = [len({shown(text) for text in line}) for line in zip(*answers, strict=True)]
    lines = [index for index, count in enumerate(distinct) if count > 1]
    Random(seed).shuffle(lines)
    return sorted(lines, key=lambda index: -distinct[index])[:number]


def _compared(
    systems: Mapping[str, Sequence[str]], system: str | None, baseline: str | None
) -> tuple[str, str]:
    """The system whose gain counts, and the baseline."""
    names = list(systems)
    pair = names[-1] if system is None else system, names[0] if baseline is None else baseline
    for flag, name in zip(("--of", "--baseline"), pair, strict=True):
        if name not in systems:
            raise UserError(f"{flag} {name} is none of the systems {', '.join(names)}")
    if pair[0] == pair[1]:
        raise UserError(f"--choose best compares {pair[0]} with itself; name another --baseline")
    return pair


def _gains(
    pair: Mapping[str, Sequence[str]],
    references: Sequence[str],
    number: int,
    metric: Metric,
) -> dict[int, dict[str, float]]:
    """Sentence scores of a system and the baseline by line, where it gains most, best first."""
    # chrF tells single sentences apart better; sentence BLEU needs the effective order
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    scores: dict[int, dict[str, float]] = {}
    for index, reference in enumerate(references):
        texts = {name: own[index] for name, own in pair.items()}
        if len(set(map(shown, texts.values()))) > 1:
            scores[index] = {
                name: scorer.sentence_score(text, [reference]).score for name, text in texts.items()
            }
    system, baseline = pair
    gains = {index: both[system] - both[baseline] for index, both in scores.items()}
    best = sorted(gains, key=lambda index: -gains[index])[:number]
    return {index: scores[index] for index in best if gains[index] > 0}


def rule_text(
    examples: Sequence[Example], lines: int, choose: Choice, seed: int, metric: Metric = "chrf"
) -> str:
    """One sentence that says how `side_by_side` chose examples of `lines` lines."""
    start = f"{len(examples)} of {lines} lines"
    if choose == "random":
        return f"{start}, drawn at random (seed {seed})."
    if choose == "differing":
        return f"{start}, drawn from those with the most different answers (seed {seed})."
    name = {"chrf": "chrF", "bleu": "BLEU"}[metric]
    if not examples:
        return f"{start} have a gain in sentence {name}."
    system, baseline = examples[0].scores
    return f"{start}: the largest gains of {system} over {baseline} in sentence {name}."


def as_markdown(examples: Sequence[Example]) -> str:
    """One table an example, as on a page of the paper; markup in texts is made harmless."""
    tables = []
    for one in examples:
        rows = [
            f"| {escape_markdown(name)} | {escape_markdown(text)} |" for name, text in one.rows()
        ]
        tables.append("\n".join([f"| | {one.title()} |", "| --- | --- |", *rows, ""]))
    return "\n".join(tables)


def as_text(examples: Sequence[Example]) -> str:
    """For a terminal."""
    blocks = []
    for one in examples:
        width = max(len(name) for name, _ in one.rows()) + 2
        rows = [f"  {name:<{width}}{text}".rstrip() for name, text in one.rows()]
        blocks.append("\n".join([one.title(), *rows, ""]))
    return "\n".join(blocks)


def as_csv(examples: Sequence[Example]) -> str:
    """One row an example: line, source, reference if there is one, and each system's answer.

    See `harmless_cell` for texts that look like formulas.
    """
    rows = [["line", *(harmless_cell(name) for name, _ in one.rows())] for one in examples[:1]]
    rows += [[str(one.line), *(harmless_cell(text) for _, text in one.rows())] for one in examples]
    return csv_text(rows)
