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

from fairseq_kerbs.evaluation.texts import check_lengths, escape_markdown, shown, table_as_csv
from fairseq_kerbs.utils.errors import UserError

Choice = Literal["differing", "best", "random"]
Metric = Literal["chrf", "bleu"]
Texts = Sequence[str]


@dataclass(frozen=True)
class Example:
    """One line of the test set."""

    line: int  # from 1
    source: str
    reference: str | None
    answers: dict[str, str]  # by system
    scores: dict[str, float] = field(default_factory=dict)  # of those compared (``best``)

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts, from the source to the last system, each text on one line."""
        texts = [("Source", self.source), ("Reference", self.reference), *self.answers.items()]
        return [(name, shown(text)) for name, text in texts if text is not None]

    def title(self) -> str:
        """The line's number, and the scores if any."""
        listing = ", ".join(f"{name} {score:.1f}" for name, score in self.scores.items())
        return f"line {self.line}" + (f" ({listing})" if listing else "")


def side_by_side(
    sources: Texts, references: Texts | None, systems: Mapping[str, Texts],
    choose: Choice, number: int, seed: int, *,
    system: str | None = None, baseline: str | None = None, metric: Metric = "chrf",
) -> list[Example]:  # fmt: skip
    """Choose at most ``number`` lines by a rule and put the systems' answers side by side.

    Sources, references and systems are raw texts, parallel to each other. Of ``best``, ``system``
    is the one whose gain counts in the sentence's ``metric``, ``baseline`` what it is compared
    with; by default the last and the first.

    Returns examples in the order of the test set; for ``best``, the largest gain first, gains only.
    Raises a UserError if numbers of lines differ, the name is unknown, or ``best`` has no
    references.
    """
    texts = {
        "--source": sources,
        **{f"--system {name}": answers for name, answers in systems.items()},
    }
    check_lengths(texts if references is None else {**texts, "--reference": references})
    scores: dict[int, dict[str, float]] = {}
    if choose == "best":
        names = list(systems)
        pair = system or names[-1], baseline or names[0]
        scores = _gains(systems, references, number, pair, metric)
        lines = list(scores)
    elif choose == "random":
        lines = sorted(Random(seed).sample(range(len(sources)), min(number, len(sources))))
    else:
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
    systems: Mapping[str, Texts], references: Texts | None, number: int, pair: tuple[str, str],
    metric: Metric,
) -> dict[int, dict[str, float]]:  # fmt: skip
    """Scores of a system and the baseline by line, where it gains most, best first."""
    for flag, name in zip(("--of", "--baseline"), pair):
        if name not in systems:
            raise UserError(f"{flag} {name} is none of the systems {', '.join(systems)}")
    if references is None:
        raise UserError("--choose best needs --reference")
    # BLEU of a sentence needs the effective order
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    scores = {
        line: {name: scorer.sentence_score(systems[name][line], [text]).score for name in pair}
        for line, text in enumerate(references)
    }
    gains = {line: scores[line][pair[0]] - scores[line][pair[1]] for line in scores}
    best = sorted(gains, key=lambda line: -gains[line])[:number]
    return {line: scores[line] for line in best if gains[line] > 0}


def rule_text(
    examples: Sequence[Example], lines: int, choose: Choice, seed: int, metric: Metric = "chrf"
) -> str:
    """One sentence that says how `side_by_side` chose examples of ``lines`` lines."""
    start, score = f"{len(examples)} of {lines} lines", {"chrf": "chrF", "bleu": "BLEU"}[metric]
    if choose == "random":
        return f"{start}, drawn at random (seed {seed})."
    if choose == "differing":
        return f"{start}, drawn from those with the most different answers (seed {seed})."
    if not examples:
        return f"{start} have a gain in sentence {score}."
    system, baseline = examples[0].scores
    return f"{start}: the largest gains of {system} over {baseline} in sentence {score}."


def as_markdown(examples: Sequence[Example]) -> str:
    """One table an example, as on a page of the paper; markup in texts is made harmless."""
    tables = []
    for example in examples:
        rows = [f"| {' | '.join(map(escape_markdown, row))} |" for row in example.rows()]
        tables.append("\n".join([f"| | {example.title()} |", "| --- | --- |", *rows, ""]))
    return "\n".join(tables)


def as_text(examples: Sequence[Example]) -> str:
    """For a terminal."""
    blocks = []
    for example in examples:
        width = max(len(name) for name, _ in example.rows()) + 2
        rows = [f"  {name:<{width}}{text}".rstrip() for name, text in example.rows()]
        blocks.append("\n".join([example.title(), *rows, ""]))
    return "\n".join(blocks)


def as_csv(examples: Sequence[Example]) -> str:
    """One row an example: line, source, reference if there is one, and each system's answer."""
    head = ["line", *(name for each in examples[:1] for name, _ in each.rows())]
    rows = [[each.line, *(text for _, text in each.rows())] for each in examples]
    return table_as_csv(head, rows)
