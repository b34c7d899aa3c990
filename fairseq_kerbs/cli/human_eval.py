"""``fairseq-kerbs human-eval``: blinded sheets for human raters, and their scores."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from fairseq_kerbs.cli.output import say_written, write_files
from fairseq_kerbs.cli.parameters import (
    FILE,
    OUTPUT,
    Command,
    Group,
    Whole,
    csv_option,
    examples,
    json_option,
    seed_option,
)
from fairseq_kerbs.cli.texts import (
    fill_missing_option,
    generated_language_option,
    read_answers,
    source_language_option,
    source_option,
    system_option,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, check_can_write


@click.group(
    "human-eval",
    cls=Group,
    no_args_is_help=False,
    epilog=examples(
        "human-eval export --source test.de --system a=a.txt --system b=b.txt --sheets DIR "
        "--key key.json",
        "human-eval score --key key.json --baseline a rater1.csv rater2.csv",
    ),
)
def human_eval() -> None:
    """Blinded sheets for human raters, and their scores.

    Human evaluation as in Section 5 of the paper: people score the answers of several systems
    without knowing which is whose.
    """


@human_eval.command(
    "export",
    cls=Command,
    epilog=examples(
        "human-eval export --source test.de --system a=a.txt --system b=b.txt --sheets DIR "
        "--key key.json"
    ),
)
@source_option
@system_option
@generated_language_option
@source_language_option
@click.option("--unescape", is_flag=True, help="undo XML entities in fairseq-generate's output")
@fill_missing_option
@click.option(
    "--sheets", type=FILE, metavar="DIR", required=True, help="output folder of the sheets"
)
@click.option(
    "--key",
    type=OUTPUT,
    metavar="FILE",
    required=True,
    help="output file of the key, JSON, outside DIR",
)
@click.option("--items", type=Whole(min=1), metavar="N", default=50, help="number of items")
@click.option("--raters", type=Whole(min=1), metavar="N", default=3, help="number of raters")
@seed_option()
@click.option(
    "--delimiter",
    type=click.Choice(["comma", "semicolon", "tab"]),
    default="comma",
    help="column delimiter. With a decimal comma use semicolon",
)
@click.option("--force", is_flag=True, help="replace existing files")
def export(
    source: Path,
    systems: tuple[str, ...],
    lang: str,
    source_lang: str | None,
    unescape: bool,
    fill_missing: bool,
    sheets: Path,
    key: Path,
    items: int,
    raters: int,
    seed: int,
    delimiter: str,
    force: bool,
) -> None:
    """Draw items and write a sheet for each rater.

    Draw items, give the systems' answers letters in an order shuffled for each item, and write
    DIR/rater1.csv … with the scoring standard at the head, and the key. Keep the key from the
    raters.
    """
    from fairseq_kerbs.evaluation.human import DELIMITERS, make_key, sheet_text

    sources, answers = read_answers(
        source, systems, lang, source_lang, unescape=unescape, fill=fill_missing
    )
    drawn = make_key(sources, answers, items=items, raters=raters, seed=seed)
    contents = {
        sheets / f"rater{rater}.csv": sheet_text(drawn, rater, DELIMITERS[delimiter])
        for rater in range(1, raters + 1)
    }
    contents[key] = drawn.as_json()
    if key.resolve().is_relative_to(sheets.resolve()):
        raise UserError(f"--key: {key} lies in --sheets; put it where raters do not see it")
    check_can_write(sheets, "--sheets", folder=True)
    others = sorted(str(path) for path in {*sheets.glob("rater*.csv")} - {*contents})
    if others:  # which belong to another key
        raise UserError(
            f"--sheets: {sheets} has sheets of another export, {', '.join(others)}; name another "
            "folder, or remove them"
        )
    there = [str(path) for path in contents if path.exists()]
    if there and not force:
        raise UserError(f"{', '.join(there)} exist already; use --force to replace them")
    with ExitStack() as files_to_be:  # sheets without their key would be of no use
        for path, content in contents.items():
            files_to_be.enter_context(atomic_write(path)).write(content)
    what = f"{raters} sheets, {items} of {len(sources)} lines, {len(answers)} systems"
    say_written(sheets, what)
    say_written(key, "the key, to be kept from the raters")


@human_eval.command(
    "score",
    cls=Command,
    epilog=examples("human-eval score --key key.json --baseline a rater1.csv rater2.csv"),
)
@click.option("--key", type=FILE, metavar="FILE", required=True, help="key file of the export")
@click.argument("sheets", type=FILE, nargs=-1, required=True, metavar="SHEET...")
@click.option("--baseline", metavar="NAME", help="system that the others are compared with")
@json_option
@csv_option
def score(
    key: Path,
    sheets: tuple[Path, ...],
    baseline: str | None,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Means, agreement and tests from filled sheets.

    Check the filled sheets SHEET against the key and print each system's mean score, the raters'
    agreement, and with --baseline a one-tailed paired t-test of every other system.
    """
    from fairseq_kerbs.evaluation.human import as_csv, as_text, evaluate, read_key, read_sheet

    answer_key = read_key(key)
    filled = [read_sheet(path, answer_key) for path in sheets]
    result = evaluate(answer_key, filled, baseline)
    print(as_text(result))
    write_files(json_file, csv_file, result, as_csv(result))
