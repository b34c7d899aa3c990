"""``fairseq-kerbs generate`` and ``translate``: fairseq-generate with a configuration's flags."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fairseq_kerbs.cli.experiments import (
    choose_threads,
    config_argument,
    data_argument,
    dry_run_option,
    load_experiment,
    naming_files,
    passed_on_argument,
    run_fairseq,
    save_dir_argument,
)
from fairseq_kerbs.cli.output import announce, write_output
from fairseq_kerbs.cli.parameters import FILE, OUTPUT, PASS_ON, Command, examples
from fairseq_kerbs.utils.dictionaries import read_dictionary
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import STDIN, atomic_write, check_can_write, read_lines
from fairseq_kerbs.utils.processes import find_program, quoted
from fairseq_kerbs.utils.threads import limit_threads

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

    from fairseq_kerbs.configurations import Experiment
    from fairseq_kerbs.programs import Call

_SENSES = re.compile(r"K-(\d+)\t(.*)")  # of a hypothesis, after it

_JOINING = ("remove-bpe", "post-process")
"""Spellings of the flag that joins subwords."""

_NO_ERROR = re.compile(r" \| (INFO|WARNING) \| ")


_SILENT = ("quiet", "results_path")
"""Values of flags that leave no translations in the output of fairseq-generate."""

_NOT_OF_TEXT = {
    "gen_subset": "reads standard input and no split",
    "dataset_impl": "makes its data itself",
    "task": "translates, and has --task translation",
    "score_reference": "has no reference to score; use generate",
    "prefix_size": "has no reference to begin with; use generate",
    "nbest": "writes the best translation of each line; use generate",
    "num_shards": "translates every line",
    "shard_id": "translates every line",
}
"""Flags of fairseq-generate that 'translate' cannot serve, and why."""


def plan_generation(
    experiment: Experiment,
    data: str,
    save_dir: str,
    passed_on: Sequence[str],
    *,
    print_senses: bool,
) -> Call:
    """The call of fairseq-generate for an experiment.

    A UserError is raised if its flags are refused, or leave no translations in the output.
    """
    from fairseq_kerbs.program_checks import checkpoints_of
    from fairseq_kerbs.programs import GENERATE, read_call

    best = str(Path(save_dir) / "checkpoint_best.pt")
    flags = {"path": best, "gen-subset": "test", **experiment.generate}
    if "task" in experiment.train:
        flags.setdefault("task", experiment.train["task"])
    call = read_call(GENERATE, data, flags, passed_on)
    if print_senses and "post_process" in call.given:
        if "post_process" in call.on_command_line:
            word = _spelling(call, "post_process", passed_on)
            raise UserError(f"{word} does not go with --print-senses, which names subwords")
        flags = {name: value for name, value in flags.items() if name not in _JOINING}
        call = read_call(GENERATE, data, flags, passed_on)
    for name in _SILENT:
        if name in call.given:
            raise UserError(
                f"{call.flag(name)} leaves no translations for the output: leave it out"
            )
    if print_senses and len(checkpoints_of(call)) > 1:
        raise UserError("--print-senses needs one model, but --path names several: name one")
    return call


def _spelling(call: Call, name: str, passed_on: Sequence[str]) -> str:
    """A flag as it was given, of those that set one value."""
    spellings = call.actions[name].option_strings
    given = (word.partition("=")[0] for word in passed_on)
    return next((flag for flag in given if flag in spellings), call.flag(name))


def _choose_threads(experiment: Experiment, data: str, call: Call) -> None:
    """Choose the number of threads by the size of the model that the configuration trains."""
    from fairseq_kerbs.programs import TRAIN, read_call

    try:
        training = read_call(TRAIN, data, experiment.train).values
    except UserError:  # no training of it could start, but other models can generate
        limit_threads()
        return
    training.cpu = call.values.cpu
    choose_threads(training)


def check_checkpoints(call: Call) -> None:
    """Raise a UserError if a checkpoint of ``--path`` is missing or damaged."""
    from fairseq_kerbs.program_checks import checkpoints_of
    from fairseq_kerbs.utils.checkpoint_files import check_checkpoint

    for checkpoint in checkpoints_of(call):
        if not checkpoint.exists():
            raise UserError(f"no checkpoint {checkpoint}; train first, or name another with --path")
        check_checkpoint(checkpoint, "--path")


def check_direction(call: Call, source: str, target: str) -> None:
    """Raise a UserError if a model of the other direction is named.

    With a joined dictionary fairseq would translate the wrong way without a word.

    Args:
        call: the call, whose checkpoints are there.
        source: source language of the translation.
        target: its target language.
    """
    from fairseq_kerbs.checkpoints import read_checkpoint
    from fairseq_kerbs.program_checks import checkpoints_of
    from fairseq_kerbs.utils.dictionaries import is_reversed

    for checkpoint in checkpoints_of(call):
        try:
            state = read_checkpoint(checkpoint)
            task = state["cfg"]["task"]
        except (UserError, KeyError, TypeError):  # which fairseq itself may read
            continue
        trained = task if isinstance(task, Mapping) else vars(task)
        given = (trained.get("source_lang"), trained.get("target_lang"))
        if given == (target, source) or is_reversed(state, source, target):
            raise UserError(
                f"{checkpoint} was trained to translate from {target} to {source}, not from "
                f"{source} to {target}; give --source-lang {target} --target-lang {source}"
            )


@click.command(
    "generate",
    cls=Command,
    context_settings=PASS_ON,
    epilog=examples(
        "generate toy data/bin runs/toy --reference test.en",
        "generate toy data/bin runs/toy --gen-subset valid --beam 1 --print-senses",
    ),
)
@config_argument
@data_argument
@save_dir_argument
@passed_on_argument
@dry_run_option
@click.option(
    "--output", type=OUTPUT, metavar="FILE", help="output file [SAVE_DIR/generate-SUBSET.txt]"
)
@click.option(
    "--reference",
    type=FILE,
    metavar="FILE",
    help="raw target text, to print detokenized BLEU",
)
@click.option(
    "--print-senses",
    is_flag=True,
    help="add K-ID lines with word#sense:posterior for each subword",
)
@click.option(
    "--unescape",
    is_flag=True,
    help="undo XML entities for BLEU [as the record of 'prepare' says, and likewise for case]",
)
def generate(
    config: Path,
    data: str,
    save_dir: str,
    passed_on: tuple[str, ...],
    dry_run: bool,
    output: Path | None,
    reference: Path | None,
    print_senses: bool,
    unescape: bool,
) -> int:
    """fairseq-generate with the flags of a configuration, and BLEU.

    Print and run fairseq-generate with the flags of CONFIG, for a model that 'train' with the same
    CONFIG, DATA and SAVE_DIR has made. Other flags are passed to fairseq-generate and override
    CONFIG. With --print-senses the output stays in subwords.
    """
    from fairseq_kerbs.data.generated import count_line, sentences_of
    from fairseq_kerbs.program_checks import check_call, is_translation

    experiment = load_experiment(config, data)
    with naming_files(experiment, "generate", passed_on):
        call = plan_generation(experiment, data, save_dir, passed_on, print_senses=print_senses)
    first_data = Path(data.split(":")[0])
    scoring = None
    if reference is not None:
        scoring = read_reference(reference, call, data, unescape=unescape)
    with naming_files(experiment, "generate", passed_on):
        check_call(call, data, dry_run=dry_run)
    output = output or Path(save_dir) / f"generate-{call.values.gen_subset}.txt"
    check_can_write(output, "--output")
    command = [find_program(call.program), *call.arguments]
    announce(experiment.files, f"{quoted(command)} > {quoted([output])}", call.dropped)
    if dry_run:
        return 0
    check_checkpoints(call)
    if is_translation(call):
        languages = languages_of_text(call, data)
        check_direction(call, *languages)
        sentences = sentences_of(first_data, call.values.gen_subset, languages)
    else:
        sentences = None
    _choose_threads(experiment, data, call)
    with atomic_write(output) as stream:
        status = run_fairseq(command, call, Path(save_dir), stdout=stream)
        if status:
            raise SystemExit(status)  # it has been said why
        # this line follows the output of the program, because both write to the same open file
        if sentences is not None:
            stream.write(count_line(call.values.gen_subset, sentences) + "\n")
    if print_senses:
        add_senses(call, first_data, output)
    if scoring is not None:
        print(bleu_of(output, scoring))
    return 0


class Reference(NamedTuple):
    """A reference, and how translations are scored against it."""

    file: Path
    language: str  # of Moses' rules that undo the tokenization of the translations
    unescape: bool  # whether XML entities in them are undone
    metric: BLEU


def read_reference(file: Path, call: Call, data: str, *, unescape: bool) -> Reference:
    """Check a reference for the split of a call. How it is scored, the record of the data tells.

    Args:
        file: raw text of the target side.
        call: call of fairseq-generate.
        data: folders of the data, separated by colons.
        unescape: undo XML entities, whatever the record says.

    Raises:
        UserError: the file is no such text, or sacreBLEU's tokenizer of the language is missing.
    """
    from fairseq_kerbs.data.languages import base_language
    from fairseq_kerbs.data.prepare import target_rules
    from fairseq_kerbs.evaluation import bleu

    if not file.is_file():
        raise UserError(f"--reference {file}: no such file")
    first_data = Path(data.split(":")[0])
    source, target = languages_of_text(call, data)
    rules = target_rules(first_data, target)
    scored_as = rules["language"]
    if base_language(target) in bleu.TOKENIZED:
        scored_as = target
    metric = bleu.bleu_metric(language=scored_as, lowercase=rules["lowercase"])
    check_reference(call, first_data, file, (source, target))
    return Reference(file, rules["language"], unescape or rules["escape"], metric)


def bleu_of(output: Path, reference: Reference) -> str:
    """sacreBLEU's sentence about the output of fairseq-generate."""
    from fairseq_kerbs.evaluation import bleu

    systems, references = bleu.read_systems(
        [output], [reference.file], language=reference.language, unescape=reference.unescape
    )
    if reference.metric.lowercase:
        systems, references = bleu.lowercased(systems, references, reference.language)
    texts = systems[str(output)]
    return bleu.corpus_scores(texts, references, {"BLEU": reference.metric})[0].details


def check_reference(call: Call, data: Path, reference: Path, languages: tuple[str, str]) -> None:
    """Raise a UserError if the reference is no raw text with a line for each sentence of the split.

    ``languages`` are source and target, because ``data`` may have several pairs.

    Splits of which fairseq leaves sentences out are checked after the translation.
    """
    from fairseq_kerbs.data.generated import sentences_of
    from fairseq_kerbs.evaluation.texts import refuse_subwords

    lines = read_lines(reference)
    refuse_subwords(reference, lines)
    if not any(line.strip() for line in lines):
        raise UserError(f"--reference {reference} has no text; give one translation per line")
    values = call.values
    sentences = sentences_of(data, values.gen_subset, languages)
    fewer = values.skip_invalid_size_inputs_valid_test or values.num_shards > 1
    if sentences is not None and not fewer and sentences != len(lines):
        raise UserError(
            f"--reference {reference} has {len(lines)} lines, but --gen-subset "
            f"{values.gen_subset} has {sentences} sentences; give the reference of this split"
        )


def add_senses(call: Call, data: Path, output: Path) -> None:
    """Add lines of senses to what fairseq-generate has written.

    They have names if the training text is there.
    """
    from fairseq_kerbs.cli.models import has_training_text
    from fairseq_kerbs.cli.senses import text_with_senses
    from fairseq_kerbs.program_checks import checkpoints_of

    names = has_training_text(data)
    text = text_with_senses(checkpoints_of(call)[0], data, output, names=names, trust=True)
    with atomic_write(output) as stream:
        stream.write(text)


@click.command(
    "translate",
    cls=Command,
    context_settings=PASS_ON,
    epilog=examples(
        "translate toy data/bin runs/toy < test.de > translated.en",
        "translate toy data/bin runs/toy --beam 1 --print-senses < test.de",
    ),
)
@config_argument
@data_argument
@save_dir_argument
@passed_on_argument
@click.option(
    "--print-senses",
    is_flag=True,
    help="append word#sense:posterior for each subword, and names of the senses of content words, "
    "each after a tab",
)
def translate(
    config: Path, data: str, save_dir: str, passed_on: tuple[str, ...], print_senses: bool
) -> int:
    """Translate raw text from standard input to standard output.

    Translate raw text line by line, by fairseq-generate with the flags of CONFIG and a model in
    SAVE_DIR. Other flags override these. Text is preprocessed as 'fairseq-kerbs prepare' did for
    DATA. For a line that is too long for the model, an empty line is written with a warning, and
    the exit status is 1.
    """
    from fairseq_kerbs.data import tokens
    from fairseq_kerbs.data.prepare import preparation_of

    experiment = load_experiment(config, data)
    folder = Path(data.split(":")[0])
    with naming_files(experiment, "generate", passed_on):
        call = plan_generation(experiment, data, save_dir, passed_on, print_senses=print_senses)
        check_text_call(call)
    source, target = languages_of_text(call, data)
    check_checkpoints(call)
    check_direction(call, source, target)
    _choose_threads(experiment, data, call)
    reading, segment = preparation_of(folder, source)
    writing, _ = preparation_of(folder, target)
    for choice, flags in call.dropped.items():
        _say(f"left out of the configuration, by {choice}: {', '.join(flags)}")
    if os.isatty(0):
        _say("type text, one sentence a line; Ctrl-D ends it")
    lines = read_lines(STDIN)
    texts = [segment(tokens.tokenize(line, **reading)) for line in lines]
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as raw:
        _write_raw_data(Path(raw), folder, (source, target), texts, print_senses)
        ours = ["-s", source, "-t", target, "--gen-subset", "test", "--dataset-impl", "raw"]
        ours.append("--skip-invalid-size-inputs-valid-test")
        found = _generated(call, Path(raw), ours, Path(save_dir), print_senses=print_senses)
    results = [""] * len(lines)
    long = []
    for number, text in enumerate(texts):
        if text and number in found.texts:
            words = tokens.join_subwords(found.texts[number])
            results[number] = tokens.detokenize(
                words, language=writing["language"], unescape=writing["escape"]
            )
            if print_senses:
                results[number] += f"\t{found.senses[number]}"
        elif text:
            long.append(str(number + 1))
    write_output(None, "".join(f"{result}\n" for result in results))
    if long:
        _say(f"too long for the model and left empty: line {', '.join(long)}; divide the text")
    return 1 if long else 0


def _write_raw_data(
    folder: Path, data: Path, languages: tuple[str, str], texts: Sequence[str], named: bool
) -> None:
    """Write data that fairseq-generate can read: lines of subwords, and links to dictionaries.

    If senses are ``named``, also to the training split, which names them.
    """
    for language in languages:
        read_dictionary(data / f"dict.{language}.txt")  # which names a damaged file
    kinds = ["dict.*.txt"]
    if named:
        kinds.append("train.*")
    for kind in kinds:
        for file in data.glob(kind):
            (folder / file.name).symlink_to(file.resolve())
    # one more, so that there is something to translate
    content = "".join(f"{text or '.'}\n" for text in [*texts, "."])
    source, target = languages
    (folder / f"test.{source}-{target}.{source}").write_text(content, encoding="utf-8")


def languages_of_text(call: Call, data: str) -> tuple[str, str]:
    """Source and target language of a translation: those of its flags, or else of the data."""
    from fairseq_kerbs.configurations import language_pair
    from fairseq_kerbs.program_checks import check_languages

    return check_languages(call, data) or language_pair(data)


def check_text_call(call: Call) -> None:
    """Raise a UserError if a flag cannot be served for text from standard input."""
    from fairseq_kerbs.program_checks import check_flags, is_translation

    for name, reason in _NOT_OF_TEXT.items():
        if name in call.on_command_line:
            raise UserError(f"{call.flag(name)} does not go with translate, which {reason}")
    if not is_translation(call):
        raise UserError(
            f"a model of --task {call.values.task} does not translate; generate continues the "
            "lines of a split, and fairseq-interactive those of standard input"
        )
    check_flags(call)


class Translations(NamedTuple):
    """Best hypotheses of fairseq-generate, by the number of the sentence from 0."""

    texts: dict[int, str]  # in subwords, of H lines
    senses: dict[int, str]  # of K lines, if these were added


def _generated(
    call: Call, data: Path, ours: Sequence[str], save_dir: Path, *, print_senses: bool
) -> Translations:
    """Run fairseq-generate, and read the best hypotheses.

    Raises SystemExit if it has failed, as it has said.

    Args:
        call: the call of fairseq-generate for the data of the model.
        data: folder with the text, which replaces those data.
        ours: arguments that override those of the call.
        save_dir: folder for the traceback of a program that fails.
        print_senses: whether the senses are added.
    """
    from fairseq_kerbs.data.generated import best, read_generated

    output = data / "output"
    log = data / "log"
    command = [find_program(call.program), str(data), *call.arguments[1:], *ours]
    with log.open("w") as stderr, output.open("w") as stdout:
        status = run_fairseq(command, call, save_dir, stdout, stderr.fileno())
    if status != 0:
        errors = (line for line in read_lines(log) if not _NO_ERROR.search(line))
        print(*errors, sep="\n", file=sys.stderr)
        raise SystemExit(status)
    if print_senses:
        add_senses(call, data, output)
    lines = read_lines(output)
    generated = read_generated(lines, str(output))
    hypotheses = generated.hypotheses if generated is not None else {}
    senses: dict[int, str] = {}  # the first of each sentence, as the best hypothesis is
    for match in filter(None, map(_SENSES.fullmatch, lines)):
        senses.setdefault(int(match[1]), match[2])
    texts = {number: best(of_sentence).text for number, of_sentence in hypotheses.items()}
    return Translations(texts, senses)


def _say(sentence: str) -> None:
    print(f"fairseq-kerbs: {sentence}", file=sys.stderr)
