"""What the commands of a configuration share: their arguments, and what is passed to fairseq."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from fairseq_kerbs.cli.parameters import FILE, no_flag
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.failures import REFUSAL, REPORTS, read_failure
from fairseq_kerbs.utils.processes import run_program
from fairseq_kerbs.utils.threads import limit_threads, one_thread

if TYPE_CHECKING:
    from fairseq_kerbs.configurations import Experiment
    from fairseq_kerbs.programs import Call

SMALL = 256
"""Largest width of a decoder for which one thread is enough: two gain little, and lose much beside
another program (docs/train.md)."""

_WIDTHS = ("decoder_embed_dim", "decoder_hidden_size", "hidden_size", "embed_dim")
"""Values of flags that say how wide a decoder is. Every architecture has some of them."""


def _check_save_dir(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a folder name with characters that fairseq interprets, or none."""
    if not value:
        raise click.BadParameter("it is empty; name a folder")
    if ":" in value or "${" in value:
        raise click.BadParameter(f"{value} has ':' or '${{', which fairseq interprets")
    return str(no_flag(ctx, param, value))


config_argument = click.argument("config", type=FILE, callback=no_flag)
data_argument = click.argument("data", callback=no_flag)
save_dir_argument = click.argument("save_dir", callback=_check_save_dir)
passed_on_argument = click.argument(
    "passed_on",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[FLAGS OF FAIRSEQ]...",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="only print the command")


def load_experiment(config: Path, data: str) -> Experiment:
    """Read a configuration, for data that are there."""
    from fairseq_kerbs import configurations

    experiment = configurations.load_experiment(configurations.find_configuration(config))
    configurations.check_data(data)
    return experiment


@contextmanager
def naming_files(
    experiment: Experiment, section: str, passed_on: Sequence[str] = ()
) -> Iterator[None]:
    """Say in a UserError about a flag in which file of a configuration the flag is.

    Args:
        experiment: the configuration.
        section: the section that is read, ``train`` or ``generate``. What is wrong in placement
            is said to be in "placement: train".
        passed_on: arguments of the command line, whose flags are not those of the section.
    """
    from fairseq_kerbs.programs import GENERATE, TRAIN, spellings_in_file

    try:
        yield
    except UserError as error:
        flag = re.search(r"--[a-z][\w-]*", str(error))
        if flag is None:
            raise
        program = GENERATE if section == "generate" else TRAIN
        if "placement: train" in str(error):
            section = "placement"
            passed_on = ()
        for name in spellings_in_file(program, flag[0], passed_on):
            file = experiment.origins.get((section, name[2:]))
            if file is not None and str(file) not in str(error):
                raise UserError(f"{error} ({name} is in {file})", error.program) from error
        raise


def choose_threads(training: argparse.Namespace) -> None:
    """Choose the number of threads of the programs of fairseq's that are started from now on.

    A small model has one thread on a CPU, and others one for each core that is free.

    Args:
        training: values of the flags of fairseq-train that the model was, or will be, trained with.
    """
    import torch

    widths = [int(getattr(training, name, None) or 0) for name in _WIDTHS]
    on_cpu = training.cpu or not torch.cuda.is_available()
    if on_cpu and 0 < max(widths) <= SMALL:
        one_thread(f"the model is small (its decoder is {max(widths)} wide)")
    else:
        limit_threads()


def run_fairseq(
    command: Sequence[str],
    call: Call,
    folder: Path,
    stdout: IO[str] | None = None,
    stderr: int | None = None,
) -> int:
    """Run a program of fairseq's; return its exit status, as a shell says that a signal ended it.

    It is 2 for what this package refuses there, although Python ends such a program with 1.

    Args:
        command: the program and its arguments.
        call: the call that the arguments are of.
        folder: folder for the traceback of a program that fails, see :func:`.say_failure`.
        stdout: where it writes its output [where this process does].
        stderr: where it writes its messages [where this process does].

    Raises:
        UserError: it fails by a flag of the call.
    """
    from fairseq_kerbs.cli.failures import say_failure

    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as reports:
        os.environ[REPORTS] = reports
        try:
            status = run_program(command, stdout, stderr)
        finally:
            del os.environ[REPORTS]
        failure = read_failure(Path(reports))
        # a refusal in one of several processes is a failure of the program that started them
        refused = failure is None or failure.error.startswith("ProcessExitedException")
        if status == 1 and refused and Path(reports, REFUSAL).exists():
            return 2
    if status > 0 and failure is not None:
        return say_failure(call, failure, folder)
    return status if status >= 0 else 128 - status
