"""``fairseq-kerbs generate`` and ``translate``: fairseq-generate with a configuration's flags."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fairseq_kerbs.cli.experiments import (
    config_argument,
    data_argument,
    dry_run_option,
    load_experiment,
    passed_on_argument,
    save_dir_argument,
)
from fairseq_kerbs.cli.output import announce, write_output
from fairseq_kerbs.cli.parameters import FILE, PASS_ON, Command, examples
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import STDIN, atomic_write, read_lines
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, SAFE, find_program, quoted, run_program

if TYPE_CHECKING:
    from fairseq_kerbs.configurations import Flags

_SENSES = re.compile(r"K-(\d+)\t(.*)")  # of a hypothesis, after it

_NO_ERROR = re.compile(r" \| (INFO|WARNING) \| ")


class Generation(NamedTuple):
    """What fairseq-generate will do, by its flags."""

    arguments: list[str]
    checkpoints: list[Path]
    subset: str
    target: str | None  # its language, if a flag names it


def plan_generation(data: str, flags: Flags, passed_on: Sequence[str]) -> Generation:
    """Read the flags of fairseq-generate that are about files and languages."""
    from fairseq_kerbs.configurations import program_arguments

    arguments = program_arguments(data, flags, passed_on)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--path")
    parser.add_argument("--gen-subset")
    parser.add_argument("--target-lang", "-t")
    parser.add_argument("--checkpoint-suffix", default="")
    named, _ = parser.parse_known_args(arguments)
    paths = named.path.replace(".pt", f"{named.checkpoint_suffix}.pt")  # as fairseq does
    checkpoints = [Path(path) for path in paths.split(":")]
    return Generation(arguments, checkpoints, named.gen_subset, named.target_lang)


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
    "--output", type=FILE, metavar="FILE", help="output file [SAVE_DIR/generate-SUBSET.txt]"
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
    "--unescape", is_flag=True, help="undo the XML entities of 'prepare --escape' for BLEU"
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
) -> None:
    """fairseq-generate with the flags of a configuration, and BLEU.

    Print and run fairseq-generate with the flags of CONFIG, for a model that 'train' with the same
    CONFIG, DATA and SAVE_DIR has made. Other flags are passed to fairseq-generate and override
    CONFIG. With --print-senses the output stays in subwords.
    """
    from fairseq_kerbs.cli.senses import text_with_senses
    from fairseq_kerbs.configurations import language_pair
    from fairseq_kerbs.data.generated import count_line, sentences_of
    from fairseq_kerbs.data.prepare import target_rules
    from fairseq_kerbs.evaluation import bleu

    experiment = load_experiment(config, data)
    best = str(Path(save_dir) / "checkpoint_best.pt")
    flags = {"path": best, "gen-subset": "test", **experiment.generate}
    if print_senses:
        joining = ("remove-bpe", "post-process")
        given = [word for word in passed_on if word.partition("=")[0][2:] in joining]
        if given:
            raise UserError(f"{given[0]} does not go with --print-senses, which names subwords")
        flags = {name: value for name, value in flags.items() if name not in joining}
    planned = plan_generation(data, flags, passed_on)
    if reference is not None and not reference.is_file():
        raise UserError(f"--reference {reference}: no such file")
    used = {word.partition("=")[0] for word in planned.arguments}
    for silent in ("--quiet", "--results-path"):
        if silent in used:
            raise UserError(f"{silent} leaves no translations for the output: leave it out")
    first_data = Path(data.split(":")[0])
    if reference is not None:
        suffix = planned.target or language_pair(data)[1]
        language = target_rules(first_data, suffix)
        scored_as = suffix if suffix in bleu.TOKENIZED else language
        metrics = {"BLEU": bleu.bleu_metric(language=scored_as)}  # which may refuse the language
    output = output or Path(save_dir) / f"generate-{planned.subset}.txt"
    command = [find_program("fairseq-generate"), *planned.arguments]
    announce(experiment.files, f"{quoted(command)} > {quoted([output])}")
    if print_senses and len(planned.checkpoints) > 1:
        raise UserError("--print-senses needs one model, but --path names several: name one")
    if dry_run:
        return
    for checkpoint in planned.checkpoints:
        if not checkpoint.is_file():
            raise UserError(f"no checkpoint {checkpoint}; train first, or name another with --path")
    sentences = sentences_of(first_data, planned.subset)
    with atomic_write(output) as stream:
        status = run_program(command, stdout=stream)
        if status < 0:
            raise UserError(f"fairseq-generate was ended by signal {-status}")
        if status:
            raise SystemExit(status)  # fairseq-generate has printed why
        if sentences is not None:  # it shares the place in the file with the program
            stream.write(count_line(planned.subset, sentences) + "\n")
    if print_senses:
        model = planned.checkpoints[0]
        text = text_with_senses(model, first_data, output, names=True, trust=True)
        with atomic_write(output) as stream:
            stream.write(text)
    if reference is not None:
        systems, references = bleu.read_systems(
            [output], [reference], language=language, unescape=unescape
        )
        print(bleu.corpus_scores(systems[str(output)], references, metrics)[0].details)


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
    from fairseq_kerbs.configurations import check_data, language_pair
    from fairseq_kerbs.data import tokens
    from fairseq_kerbs.data.prepare import preparation_of

    check_data(data)
    folder = Path(data.split(":")[0])
    source, target = language_pair(str(folder))
    reading, segment = preparation_of(folder, source)
    writing, _ = preparation_of(folder, target)
    if os.isatty(0):
        _say("type text, one sentence a line; Ctrl-D ends it")
    lines = read_lines(STDIN)
    texts = [segment(tokens.tokenize(line, **reading)) for line in lines]
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as raw:
        _write_raw_data(Path(raw), folder, (source, target), texts, print_senses)
        flags = [*passed_on, "-s", source, "-t", target, "--gen-subset", "test"]
        flags += ["--dataset-impl", "raw", "--skip-invalid-size-inputs-valid-test"]
        if print_senses:
            flags.append("--print-senses")
        best = _generated(config, Path(raw), save_dir, flags)
    results = [""] * len(lines)
    long = []
    for number, text in enumerate(texts):
        if text and number in best["H"]:
            words = tokens.join_subwords(best["H"][number])
            results[number] = tokens.detokenize(
                words, language=writing["language"], unescape=writing["escape"]
            )
            if print_senses:
                results[number] += f"\t{best['K'][number]}"
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
    for kind in ("dict.*.txt", "train.*") if named else ("dict.*.txt",):
        for file in data.glob(kind):
            (folder / file.name).symlink_to(file.resolve())
    # one more, so that there is something to translate
    content = "".join(f"{text or '.'}\n" for text in [*texts, "."])
    source, target = languages
    (folder / f"test.{source}-{target}.{source}").write_text(content, encoding="utf-8")


def _generated(
    config: Path, data: Path, save_dir: str, flags: Sequence[str]
) -> dict[str, dict[int, str]]:
    """The best hypotheses (H) of 'generate', and their senses (K), by number from 0.

    Raises SystemExit if it has failed, as it has said.
    """
    from fairseq_kerbs.data.generated import best, read_generated

    output = data / "output"
    log = data / "log"
    command = [sys.executable, *SAFE, "-m", "fairseq_kerbs.cli", "generate", str(config)]
    command += [str(data), save_dir, *flags, "--output", str(output)]
    paths = (str(PLUGIN_FOLDER.parent), os.environ.get("PYTHONPATH", ""))  # this checkout
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with log.open("w") as stderr, open(os.devnull, "w") as stdout:
        status = run_program(command, stdout, stderr.fileno())
    if status != 0:
        errors = (line for line in read_lines(log) if not _NO_ERROR.search(line))
        print(*errors, sep="\n", file=sys.stderr)
        raise SystemExit(status)
    lines = read_lines(output)
    generated = read_generated(lines, str(output))
    hypotheses = generated.hypotheses if generated is not None else {}
    senses: dict[int, str] = {}  # the first of each sentence, as the best hypothesis is
    for match in filter(None, map(_SENSES.fullmatch, lines)):
        senses.setdefault(int(match[1]), match[2])
    return {"H": {number: best(found).text for number, found in hypotheses.items()}, "K": senses}


def _say(sentence: str) -> None:
    print(f"fairseq-kerbs: {sentence}", file=sys.stderr)
