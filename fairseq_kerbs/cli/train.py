"""``fairseq-kerbs train``: fairseq-train with a configuration's flags."""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

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
from fairseq_kerbs.cli.output import announce, show
from fairseq_kerbs.cli.parameters import PASS_ON, Command, examples
from fairseq_kerbs.cli.stopping import INTERRUPTED, STOPPED, where_it_goes_on
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import find_program, quoted

if TYPE_CHECKING:
    from fairseq_kerbs.configurations import Experiment
    from fairseq_kerbs.training.staged import Training


class _WithDefaults(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default is not None and action.default is not False
        return f"{action.help} [%(default)s]" if default else action.help


def plugin_flags() -> str:
    """Help of the flags that the plugin adds to fairseq-train, for which alone fairseq is loaded.

    fairseq adds flags to a parser of argparse.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from fairseq_kerbs.configurations import configuration_names
    from fairseq_kerbs.criterions import KerbsCrossEntropyCriterionConfig
    from fairseq_kerbs.models import config

    shown = argparse.ArgumentParser(
        add_help=False, usage=argparse.SUPPRESS, formatter_class=_WithDefaults
    )
    for kind in (
        config.KerbsConfig,
        config.SeparableKerbsConfig,
        config.TransformerKerbsConfig,
        config.RecurrentKerbsConfig,
        config.RecurrentAttentionConfig,
        KerbsCrossEntropyCriterionConfig,
    ):
        title = (inspect.getdoc(kind) or "").rstrip(".").replace("`", "")
        group = shown.add_argument_group(title)
        gen_parser_from_dataclass(group, kind())
        if kind is config.KerbsConfig:
            config.add_reallocation_at(group)
    shown.epilog = f"Configurations: {', '.join(configuration_names())}"
    return shown.format_help()


def _show_train_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"{ctx.get_help()}\n\n{plugin_flags()}", nl=False)
        ctx.exit()


@click.command(
    "train",
    cls=Command,
    context_settings=PASS_ON,
    add_help_option=False,
    epilog=examples(
        "train toy data/bin runs/toy --max-update 500",
        "train multi30k/lstm_kerbs data/bin runs/lstm --reallocation clusters --dry-run",
    ),
)
@config_argument
@data_argument
@save_dir_argument
@passed_on_argument
@dry_run_option
@click.option(
    "-h",
    "--help",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_train_help,
    help="show this message, all flags of fairseq_kerbs and its configurations, and exit",
)
def train(config: Path, data: str, save_dir: str, passed_on: tuple[str, ...], dry_run: bool) -> int:
    """fairseq-train with the flags of a configuration.

    Print and run fairseq-train with the flags of CONFIG, a YAML file or the name of a configuration
    of fairseq_kerbs, such as toy. DATA is the folder 'bin' of 'fairseq-kerbs prepare', or of
    fairseq-preprocess, and SAVE_DIR the folder of the checkpoints. Other flags are passed to
    fairseq-train, and override CONFIG.
    """
    from fairseq_kerbs.models import check_flags_of_model
    from fairseq_kerbs.program_checks import check_call
    from fairseq_kerbs.training.staged import (
        Training,
        call_after_placement,
        check_text,
        check_training,
    )

    experiment = load_experiment(config, data)
    flags = {"save-dir": save_dir, **experiment.train}
    training = Training(data, save_dir, flags, passed_on)
    with naming_files(experiment, "train", passed_on):
        if experiment.placement is not None:
            whole = check_training(training, experiment.placement)
        call = training.call()
        if call.values.save_dir != save_dir:
            raise UserError(
                f"--save-dir {call.values.save_dir}: the folder is this command's argument "
                "SAVE_DIR; leave out the flag, also in the configuration"
            )
        check_call(call, data, dry_run=dry_run)
        check_flags_of_model(call.values)
        if experiment.placement is not None:
            last = call_after_placement(training, experiment.placement, whole)
            check_flags_of_model(last.values)
    if not dry_run:
        if experiment.placement is not None:
            check_text(call, data)
        choose_threads(call.values)
    try:
        status = _run_steps(experiment, training, dry_run=dry_run)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as ended:
        if ended.code not in STOPPED:
            raise
        status = int(ended.code)
    if status in STOPPED:
        print(f"fairseq-kerbs: stopped; {where_it_goes_on(call)}", file=sys.stderr)
    return status


def _run_steps(experiment: Experiment, training: Training, *, dry_run: bool) -> int:
    """Run fairseq-train, or the three steps of a training with a placement of senses.

    Returns the exit status of the last step. Raises SystemExit with that of another one that fails.
    """
    from fairseq_kerbs.training.curve import begins_after
    from fairseq_kerbs.training.staged import (
        continued_events,
        train_and_place,
        updates_of_softmax,
    )

    whole = training.call()
    call = whole
    events: AbstractContextManager[None] = nullcontext()
    dropped = whole.dropped

    def run_step(step: Sequence[str]) -> None:
        announce(experiment.files, quoted(step), dropped)
        status = 0 if dry_run else run_fairseq(step, whole, Path(training.save_dir))
        if status != 0:
            raise SystemExit(status)

    if experiment.placement is not None:
        last = train_and_place(training, experiment.placement, run_step, dry_run=dry_run)
        call = last.call()
        show(begins_after(updates_of_softmax(whole, experiment.placement)))
        if dry_run:
            show(
                "# --total-senses of the last command is an upper limit until the second has run: "
                "print it again then"
            )
        else:
            continued = continued_events(training, whole, experiment.placement)
            events = nullcontext() if continued is None else continued.running()
    command = [find_program(call.program), *call.arguments]
    announce(experiment.files, quoted(command), call.dropped)
    if dry_run:
        return 0
    with events:
        return run_fairseq(command, call, Path(training.save_dir))
