r"""Read the output of fairseq-generate and fairseq-interactive.

Each of its lines is about a sentence, whose number counts from 0 in the order of the corpus::

    S-3 TAB source                      T-3 TAB reference
    H-3 TAB score TAB hypothesis        as the model's words
    D-3 TAB score TAB hypothesis        decoded by --bpe and --tokenizer
    P-3 TAB scores of words             A-3 TAB alignment

Batches come in any order, and their lines may have been sorted or selected since. With ``--nbest``
a sentence has several hypotheses. Sentences may be left out, and lines of the log surround it all.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fairseq_kerbs.data.tokens import in_sentencepieces, join_subwords
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines

Part = Literal["S", "T", "H"]
"""Kind of line: source, target (reference) or hypothesis."""

SHOWN = 10
"""Maximum number of missing sentences that a message lists."""

_PROGRESS = re.compile(r".*\d+%\|[^\t]*\](?=[STHD]-\d+\t)")  # a bar that shares a line, with 2>&1
_TEXT = re.compile(r"([ST])-(\d+)(?:\t(.*))?", re.DOTALL)
_HYPOTHESIS = re.compile(r"([HD])-(\d+)\t(\S+)\t(.*)", re.DOTALL)
_CUT_OFF = re.compile(r"[HD]-\d+(?:\t\S*)?")
_ANY = re.compile(r"[A-Z]-\d+(?:_\d+)?\t")
_LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| [A-Z]+ \| ")
_LOADED = re.compile(r"\| loaded ([\d,]+) examples from: .*-[^/\s]+\.[^/\s]+$")  # …test.de-en.de
_TRANSLATED = re.compile(r"\| Translated ([\d,]+) sentences \(")
_COUNTED = re.compile(r"Sentences of \S+: (\d+)")  # by 'fairseq-kerbs generate', see count_line()
_GENERATE = re.compile(r"Generate \S+ with beam=\d+: ")
_TOTAL_TIME = " | Total time: "  # of fairseq-interactive
_SKIPPED = " samples have invalid sizes and will be skipped"
_SCORE_FIRST = re.compile(r"(?:\d+\t)?-\d+\.\d+(?:e-\d+)?\t")  # perhaps with a number
_WITHOUT_SCORE = re.compile(r"[HD]-\d+\t(?!-?\d+\.\d+(?:e-?\d+)?$)[^\t]*")
_WITH_SPACES = re.compile(r"[HD]-\d+ +-?\d+\.\d+(?:e-\d+)? ")
_WITH_SENSES = re.compile(r"\t\S+#\d+:[01]\.\d{4}")


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of a sentence."""

    score: float
    text: str


@dataclass
class GeneratedOutput:
    """What the lines of an output say.

    Texts are by the number of their sentence, from 0.
    """

    name: str  # of the file, for messages
    sources: dict[int, str] = field(default_factory=dict)
    references: dict[int, str] = field(default_factory=dict)
    hypotheses: dict[int, list[Hypothesis]] = field(default_factory=dict)  # H lines
    decoded: dict[int, list[Hypothesis]] = field(default_factory=dict)  # D lines
    loaded: int | None = None  # number of sentences of the data, if the log has it
    translated: int | None = None  # number of sentences with a hypothesis, if the log has it
    skipped: bool = False  # the log says that sentences were left out
    ended: bool = False  # there is a line that fairseq prints last
    logged: bool = False  # there are lines of the log

    @property
    def is_raw(self) -> bool:
        """Whether fairseq has decoded the text by --bpe or --tokenizer.

        Then D lines differ from H lines in more than joined subwords. Pieces of SentencePiece are
        of raw text, so D lines are raw text if they are no pieces any more.
        """
        return any(
            _is_decoded(best(hypotheses).text, best(self.decoded[number]).text)
            for number, hypotheses in self.hypotheses.items()
            if number in self.decoded
        )

    def texts(self, part: Part, sentences: int | None = None, *, fill: bool = False) -> list[str]:
        """Texts of one kind, one for each sentence, in the order of the corpus.

        Of several hypotheses the one with the highest score is taken. If :attr:`is_raw`, the
        decoded one is.

        Args:
            part: kind of text.
            sentences: number of sentences of the corpus. Default: that of the log, or up to the
                last one.
            fill: texts of sentences that were left out are empty. References are not filled.

        Raises:
            UserError: there are no such lines, or some are missing.
        """
        found = self._found(part)
        if not found:
            raise UserError(
                f"{self.name} has no line {part}-0, and no other {part}- lines; give "
                "fairseq-generate's unchanged output, made without --quiet and --results-path"
            )
        numbers = [*found, *self.sources, *self.references, *self.hypotheses, *self.decoded]
        count = max(max(numbers) + 1, sentences or self.loaded or 0)
        missing = [number for number in range(count) if number not in found]
        if missing and (part == "T" or not fill):
            raise self._lacking(part, missing, count)
        return [found.get(number, "") for number in range(count)]

    def _found(self, part: Part) -> dict[int, str]:
        if part == "S":
            return self.sources
        if part == "T":
            return self.references
        chosen = self.decoded if self.is_raw or not self.hypotheses else self.hypotheses
        return {number: best(hypotheses).text for number, hypotheses in chosen.items()}

    def _lacking(self, part: Part, missing: Sequence[int], count: int) -> UserError:
        lines = [str(number + 1) for number in missing[:SHOWN]]
        if len(missing) > SHOWN:
            lines.append("…")
        fault = (
            f"{self.name} has no line {part}-{missing[0]}, and lacks {len(missing)} of {count} in "
            f"total (line {', '.join(lines)} of the text). fairseq-generate leaves out sentences "
            "that are too long for the model with --skip-invalid-size-inputs-valid-test"
        )
        if part == "T":
            return UserError(f"{fault}: name a raw reference, which has a line for each sentence")
        return UserError(
            f"{fault}: give 'fairseq-kerbs detokenize', 'score', 'examples' or 'human-eval export' "
            "--fill-missing for empty lines in their places, or divide them and generate all "
            "sentences again, without --quiet"
        )


def _is_decoded(words: str, decoded: str) -> bool:
    """Whether a D line is raw text of its H line. With neither flag, the two lines are equal."""
    if decoded == words:
        return False
    if in_sentencepieces(words):
        return not in_sentencepieces(decoded)
    return join_subwords(words).split() != decoded.split()


def count_line(subset: str, sentences: int) -> str:
    """The last line of an output of 'fairseq-kerbs generate', with the number of sentences.

    fairseq itself says this in its log alone, so that nothing in its output tells whether the last
    sentence of the corpus was left out.
    """
    return f"Sentences of {subset}: {sentences}"


def sentences_of(data: Path, subset: str, languages: tuple[str, str]) -> int | None:
    """Number of sentences of a split of binarized or raw parallel data.

    None if there is no such split, or if fairseq-generate will find that it is damaged.

    Args:
        data: folder of the data, which may have other languages, too.
        subset: name of the split.
        languages: source and target language.
    """
    from fairseq.data import indexed_dataset

    source, target = languages
    for pair in (f"{source}-{target}", f"{target}-{source}"):  # fairseq reads both
        prefix = data / f"{subset}.{pair}.{source}"
        kind = indexed_dataset.infer_dataset_impl(str(prefix))
        if kind == "raw":
            return sum(1 for _ in iter_lines(prefix))
        if kind is not None:
            try:
                return len(indexed_dataset.make_dataset(str(prefix), kind))
            except Exception:  # a damaged index can cause any error
                return None
    return None


def best(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """The hypothesis with the highest score, of several the first."""
    return max(hypotheses, key=lambda hypothesis: _rank(hypothesis.score))


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def read_generated(lines: Sequence[str], name: str) -> GeneratedOutput | None:
    """Read an output, or return None for a text that is none.

    Args:
        lines: lines of a file, without line ends.
        name: name of the file, for messages.

    Raises:
        UserError: the output is truncated or has two runs, or the text is made of it in a way that
            leaves scores or senses in it, or is a log without hypotheses.
    """
    shown = [_PROGRESS.sub("", line.rpartition("\r")[2]) for line in lines]
    if not _is_output(shown):
        _check_plain(shown, name)
        return None
    if all(_WITHOUT_SCORE.fullmatch(line) for line in shown if line):
        raise UserError(
            f"{name} has H- or D- lines without their scores, as cut -f1,3 leaves them; give "
            "fairseq-generate's unchanged output"
        )
    output = GeneratedOutput(name)
    seen: Counter[str] = Counter()
    for number, line in enumerate(shown, start=1):
        hypothesis = _HYPOTHESIS.fullmatch(line)
        text = _TEXT.fullmatch(line)
        if hypothesis:
            kind, sentence, score, words = hypothesis.groups()
            texts = output.hypotheses if kind == "H" else output.decoded
            found = Hypothesis(_number(score, name, number), words)
            texts.setdefault(int(sentence), []).append(found)
        elif text:
            kind, sentence, words = text.groups()
            seen[f"{kind}-{sentence}"] += 1
            by_sentence = output.sources if kind == "S" else output.references
            by_sentence[int(sentence)] = words or ""
        elif _CUT_OFF.fullmatch(line):
            raise _truncated(name, f"line {number} ends before its text")
        else:
            _read_log(line, output)
    twice = next((key for key, times in seen.items() if times > 1), None)
    if twice:
        raise UserError(f"{name} has {twice} twice, so it is of several runs; give that of one run")
    _check_whole(output)
    return output


def _is_output(lines: Sequence[str]) -> bool:
    """Whether there are hypotheses, or nothing but other lines of an output."""
    filled = [line for line in lines if line]
    if any(map(_HYPOTHESIS.fullmatch, filled)):
        return True
    other = [line for line in filled if not _LOG.match(line)]
    return bool(other) and all(map(_ANY.match, other))


def _number(score: str, name: str, line: int) -> float:
    try:
        return float(score)
    except ValueError:
        raise UserError(
            f"{name}, line {line}: '{score}' is no score; give fairseq-generate's unchanged output"
        ) from None


def _read_log(line: str, output: GeneratedOutput) -> None:
    loaded = _COUNTED.fullmatch(line) or _LOADED.search(line)
    translated = _TRANSLATED.search(line)
    output.logged = output.logged or _LOG.match(line) is not None
    output.skipped = output.skipped or _SKIPPED in line
    if loaded:
        output.loaded = max(output.loaded or 0, int(loaded[1].replace(",", "")))
    if translated:
        output.translated = (output.translated or 0) + int(translated[1].replace(",", ""))
    last = translated or _GENERATE.match(line) or _COUNTED.fullmatch(line) or _TOTAL_TIME in line
    output.ended = output.ended or bool(last)


def _check_whole(output: GeneratedOutput) -> None:
    """Raise a UserError if an output ends too early."""
    hypotheses = output.hypotheses or output.decoded
    complete = bool(output.sources and output.references) or output.logged
    if hypotheses and complete and not output.ended:
        raise _truncated(
            output.name,
            "fairseq-generate's last line ('Generate SUBSET with beam=…' or 'Translated …') is "
            "missing",
        )
    if output.translated is not None and hypotheses and output.translated != len(hypotheses):
        raise _truncated(
            output.name,
            f"it has hypotheses of {len(hypotheses)} sentences, and by its log "
            f"{output.translated} were translated",
        )
    if output.hypotheses and output.decoded and not output.ended:
        for number in sorted({*output.hypotheses, *output.decoded}):
            counts = len(output.hypotheses.get(number, ())), len(output.decoded.get(number, ()))
            if counts[0] != counts[1]:
                raise _truncated(
                    output.name, f"it has {counts[0]} lines H-{number} and {counts[1]} D-{number}"
                )


def _truncated(name: str, why: str) -> UserError:
    return UserError(
        f"{name} is truncated: {why}; give the unchanged output, or generate all sentences again"
    )


def _check_plain(lines: Sequence[str], name: str) -> None:
    """Raise a UserError if a text is no text, but what is left of an output."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return
    if any(map(_LOG.match, filled)):
        raise UserError(
            f"{name} is a log without hypotheses (H- lines); give fairseq-generate's output, made "
            "without --quiet and --results-path"
        )
    if all(map(_SCORE_FIRST.match, filled)):
        raise UserError(
            f"{name}: every line begins with a score, so the text was cut from H- or D- lines; "
            "give fairseq-generate's unchanged output, or cut -f3-"
        )
    if all(map(_WITH_SPACES.match, filled)):
        raise UserError(
            f"{name}: lines of fairseq-generate without their tabs; give its unchanged output"
        )
    if all(map(_WITH_SENSES.search, filled)):
        raise UserError(
            f"{name} has senses after each text, by --print-senses; translate without it, or "
            "cut -f1"
        )
