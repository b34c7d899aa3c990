#!/usr/bin/env python
"""Every option of fairseq's programs on a CPU, once beside an architecture of this plugin.

Options are read from fairseq's own parsers, and from those of every optimizer, schedule, scorer,
tokenizer and segmenter that an option can name. Each is tried alone, with a valid value that is not
its default, in a training of one update or in the decoding of twelve sentences. Every choice of an
option with choices is tried. ``options.yaml`` has the values that no parser tells, the options that
another one needs, and those that a CPU cannot take, with what they would need.

A try ends in one of these outcomes:

* ``works``: the program ends with status 0 and says that it has done its work.
* ``refused``: the plugin refuses the option, in one sentence.
* ``fails in stock``: it fails, and so does fairseq's own architecture.
* ``fails``: it fails with the plugin's architecture alone.
* ``not run``: ``options.yaml`` says what it needs.

What is refused or fails in fairseq-train and fairseq-generate is tried again with ``fairseq-kerbs
train`` and ``generate``, whose configuration has the other flags. The last column has their exit
status and sentence.

With the Transformer, every option of fairseq-train and fairseq-generate is tried. With the other
models, and with the other programs, those of the model, of the task and of the data, and those that
neither of the two programs has.

Each try is a process of its own, forked from this one, which has imported what they need. It has a
folder of its own. Options of distributed training are tried in two processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "fairseq_kerbs"
SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
LIMIT = 120  # seconds, after which a try counts as failed
COLUMNS = ("program", "model", "option", "value", "with", "outcome", "sentence", "fairseq-kerbs")
LANGUAGES = ("de", "en")
SPLITS = {"train": 40, "valid": 12, "test": 12}
_SMALL_TRANSFORMER = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-ffn-embed-dim 12 "
    "--decoder-ffn-embed-dim 12 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
)
_TRAIN = (
    "--cpu --optimizer adam --lr 0.001 --max-tokens 200 --max-update 1 --num-workers 0 "
    "--no-progress-bar --save-dir save"
)
_OURS = "--criterion kerbs_cross_entropy"
_STOCK = "--criterion label_smoothed_cross_entropy"
_LM = "--task language_modeling --tokens-per-sample 30"
_DECODE = "--cpu --max-tokens 300 --num-workers 0 --beam 2 --max-len-b 12"
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): |fairseq[\w-]*: error: ")
REGISTRIES = {
    "fairseq-train": ("optimizer", "lr-scheduler"),
    "fairseq-generate": ("tokenizer", "bpe", "scoring"),
}
"""Options that choose a class of fairseq, which has options of its own.

Other programs take these options and do not read them: there one choice is tried.
"""
TRAINING = ("criterion", "optimizer", "lr-scheduler", "task", "ddp-backend", "dataset-impl")
"""Options of which fairseq-train is tried with every choice, and other programs with one."""
COMMANDS = {"fairseq-train": "train", "fairseq-generate": "generate"}
"""Commands of ours that run a program, which is also the name of its flags in a configuration."""
COMPLETE = (("fairseq-train", "transformer_kerbs"), ("fairseq-generate", "transformer_kerbs"))
"""Programs and models of which every option is tried."""


@dataclass(frozen=True)
class Model:
    """An architecture of the plugin, and the one of fairseq that it is compared with."""

    name: str
    flags: str  # of fairseq-train
    stock_flags: str
    language_model: bool = False


MODELS = {
    model.name: model
    for model in (
        Model(
            "transformer_kerbs",
            f"--arch transformer_kerbs {_SMALL_TRANSFORMER} {_OURS}",
            f"--arch transformer {_SMALL_TRANSFORMER} {_STOCK}",
        ),
        Model(
            "lstm_kerbs",
            f"--arch lstm_kerbs --hidden-size 6 --embed-dim 4 {_OURS}",
            "--arch lstm --encoder-embed-dim 4 --decoder-embed-dim 4 --encoder-hidden-size 6 "
            f"--decoder-hidden-size 6 --decoder-out-embed-dim 4 {_STOCK}",
        ),
        Model(
            "gru_lm_kerbs",
            f"--arch gru_lm_kerbs --hidden-size 6 --embed-dim 4 {_OURS} {_LM}",
            "--arch lstm_lm --decoder-embed-dim 4 --decoder-hidden-size 6 "
            f"--decoder-out-embed-dim 4 {_STOCK} {_LM}",
            language_model=True,
        ),
    )
}


@dataclass(frozen=True)
class Program:
    """A program of fairseq."""

    name: str
    module: str  # which has its cli_main
    done: str  # what it prints when it has done its work
    flags: str
    models: tuple[str, ...]


PROGRAMS = {
    program.name: program
    for program in (
        Program("fairseq-train", "train", "done training", _TRAIN, tuple(MODELS)),
        Program(
            "fairseq-generate",
            "generate",
            "Translated ",
            f"{_DECODE} --path {{checkpoint}}",
            ("transformer_kerbs", "lstm_kerbs"),
        ),
        Program(
            "fairseq-interactive",
            "interactive",
            "Total time: ",
            "--cpu --beam 2 --max-len-b 12 --path {checkpoint} --input {work}/interactive",
            ("transformer_kerbs",),
        ),
        Program(
            "fairseq-validate",
            "validate",
            " subset | loss ",
            "--cpu --max-tokens 300 --num-workers 0 --no-progress-bar --task translation "
            "--path {checkpoint}",
            ("transformer_kerbs",),
        ),
        Program(
            "fairseq-eval-lm",
            "eval_lm",
            "Perplexity: ",
            "--cpu --max-tokens 300 --num-workers 0 --tokens-per-sample 30 --path {checkpoint}",
            ("gru_lm_kerbs",),
        ),
    )
}


@dataclass(frozen=True)
class Case:
    """An option with a value, to be tried with a program and a model."""

    program: str
    model: str
    option: str
    value: str | None  # None for a switch
    flags_beside: tuple[str, ...] = ()  # flags that it needs, which stand before it
    data: str = ""  # folder of the data, if it is not the usual one
    processes: int = 1

    @property
    def arguments(self) -> list[str]:
        """The option and what it goes with, for the command line."""
        value = [] if self.value is None else [self.value]
        return [*self.flags_beside, self.option, *value]


@dataclass(frozen=True)
class Ended:
    """How a try ended."""

    fault: str  # "" if there is none
    sentence: str = ""
    log: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the table, with the logs of its tries."""

    case: Case
    outcome: str
    sentence: str
    logs: Mapping[str, str] = field(default_factory=dict)
    command: str = ""  # exit status and sentence of our command, if it was tried

    def as_json(self) -> str:
        """One line, which :func:`read_rows` reads."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def cells(self) -> list[str]:
        """Texts of :data:`COLUMNS`."""
        case = self.case
        start = [case.program, case.model, case.option, case.value or ""]
        return [*start, shlex.join(case.flags_beside), self.outcome, self.sentence, self.command]


# ------------------------------------------------------------------ which options there are


def _options_of(build: Callable[[argparse.ArgumentParser], None]) -> list[Any]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    build(parser)
    return [action for action in parser._actions if action.option_strings]


def parser_options(program: str, model: str) -> list[Any]:
    """Options of a program for a model, without those of classes that other options choose."""
    from fairseq import options

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401

    parsers = {
        "fairseq-train": options.get_training_parser,
        "fairseq-generate": options.get_generation_parser,
        "fairseq-interactive": options.get_interactive_generation_parser,
        "fairseq-validate": options.get_validation_parser,
        "fairseq-eval-lm": options.get_eval_lm_parser,
    }
    flags = shlex.split(f"{PROGRAMS[program].flags} {MODELS[model].flags}")
    argv = ["DATA", *flags] if program == "fairseq-train" else ["DATA"]
    if program == "fairseq-validate":
        argv += ["--task", "translation"]
    before = sys.argv
    sys.argv = [program]
    try:
        parser = parsers[program]()
        options.parse_args_and_arch(parser, argv)
    finally:
        sys.argv = before
    return [action for action in parser._actions if action.option_strings]


def registry_options(registry: str) -> Iterator[tuple[str, Any]]:
    """Options of each class of a registry of fairseq, with the choice that leads to it."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.registry import REGISTRIES

    for choice, entry in REGISTRIES[registry.replace("-", "_")]["registry"].items():

        def build(parser: argparse.ArgumentParser, entry: Any = entry) -> None:
            if hasattr(entry, "add_args"):
                entry.add_args(parser)
            elif getattr(entry, "__dataclass", None) is not None:
                gen_parser_from_dataclass(parser, entry.__dataclass())

        for action in _options_of(build):
            yield choice, action


def _long(action: Any) -> str:
    return next(name for name in action.option_strings if name.startswith("--"))


def values_of(action: Any) -> list[str | None]:
    """Values with which an option is tried; None stands for the option without a value."""
    name = _long(action)
    if name in SETTINGS["not_run"]:
        return [None]
    given = SETTINGS["values"].get(name, ())
    if given != ():
        listed = given if isinstance(given, list) else [given]
        return [None if value is None else str(value) for value in listed]
    if action.nargs == 0:
        return [None]
    if action.choices is not None:
        chosen = [str(choice) for choice in action.choices if choice != action.default]
        return ([None] if action.nargs == "?" else []) + chosen
    default = action.default
    kind = getattr(action.type, "__name__", "")
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        return [str(int(default) + 1 if kind == "int" else default + 0.1)]
    if kind in ("int", "float"):
        return ["1" if kind == "int" else "0.1"]
    raise KeyError(f"options.yaml has no value for {name}")


def _flags_beside(program: str, option: str, value: str | None) -> tuple[tuple[str, ...], str]:
    """Flags that an option needs, and the form of data that it needs, "" for the usual one."""
    settings = SETTINGS["with"]
    names = (f"{program} {option} {value}", f"{program} {option}", f"{option} {value}", option)
    found: Any = next((settings[name] for name in names if name in settings), ())
    data = ""
    if isinstance(found, dict):
        data = found["data"]
        found = found.get("flags", ())
    return ((found,) if isinstance(found, str) else tuple(found)), data


def _cases_of(program: str, model: str, action: Any, before: tuple[str, ...] = ()) -> list[Case]:
    """Cases of one option."""
    name = _long(action)
    distributed = getattr(action.container, "title", "") == "distributed_training"
    cases = []
    for value in values_of(action):
        beside, data = _flags_beside(program, name, value)
        listed = list(beside)
        if distributed and name not in ("--distributed-backend",):
            listed = ["--distributed-backend", "gloo", *listed]
        cases.append(
            Case(
                program,
                model,
                name,
                value,
                (*before, *listed),
                data,
                2 if distributed and program == "fairseq-train" else 1,
            )
        )
    return cases


def chosen_options(program: str, model: str) -> list[Any]:
    """The options of a program that are tried with a model, in the order of the parser."""
    from fairseq.tasks import TASK_REGISTRY

    always = ("--arch", "--cpu", "--path")
    found = [
        action
        for action in parser_options(program, model)
        if type(action).__name__ != "_HelpAction" and _long(action) not in always
    ]
    if (program, model) in COMPLETE:
        return found
    task = "language_modeling" if MODELS[model].language_model else "translation"
    of_task = {_long(action) for action in _options_of(TASK_REGISTRY[task].add_args)}
    known = {_long(action) for complete in COMPLETE for action in parser_options(*complete)}
    groups = ("Model-specific configuration", "dataset_data_loading")
    return [
        action
        for action in found
        if _long(action) in of_task
        or _long(action) not in known
        or getattr(action.container, "title", "") in groups
    ]


def all_cases(program: str, model: str) -> list[Case]:
    """Every case of a program and a model, in the order of the parsers."""
    cases: list[Case] = []
    chosen = chosen_options(program, model)
    for action in chosen:
        found = _cases_of(program, model, action)
        one = program != "fairseq-train" and _long(action)[2:] in TRAINING
        cases += found[:1] if one else found
    named = {case.option for case in cases}
    for registry in REGISTRIES.get(program, ()):
        if f"--{registry}" not in named:
            continue
        for choice, action in registry_options(registry):
            if _long(action) == "--lr":  # also an option of the program
                continue
            option = f"--{registry} {choice}"
            more, _ = _flags_beside(program, f"--{registry}", choice)
            beside = (f"--{registry}", choice, *more)
            if option in SETTINGS["not_run"]:
                cases.append(Case(program, model, _long(action), None, beside))
            else:
                cases += _cases_of(program, model, action, beside)
    return list(dict.fromkeys(cases))


# ------------------------------------------------------------------ tries


def _fork(work: Callable[[], None], log: Path, environment: Mapping[str, str]) -> int:
    """Run a function in a forked process whose output goes to a file; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(environment)
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise AssertionError


def _wait(children: Sequence[int], limit: float = LIMIT) -> list[int | None]:
    """Exit statuses of processes, None for those that took too long and were ended."""
    statuses: dict[int, int | None] = {}
    end = time.monotonic() + limit
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                statuses[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[child] = None
        time.sleep(0.01)
    return [statuses[child] for child in children]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _filled(text: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _data_of(case: Case, work: Path) -> Path:
    """Folder of the data of a case."""
    kind = "lm" if MODELS[case.model].language_model else "pairs"
    return work / kind / (case.data or "mmap")


def _places_of(case: Case, work: Path, *, stock: bool) -> dict[str, str]:
    """What replaces names in braces in the flags of a case."""
    source, target = LANGUAGES
    return {
        "work": str(work),
        "checkpoint": _checkpoint_of(case, work, stock=stock),
        "plugin": str(PLUGIN),
        "source": source,
        "target": target,
    }


def attempt(case: Case, work: Path, *, stock: bool) -> Ended:
    """Try a case with the plugin's model, or with fairseq's."""
    program = PROGRAMS[case.program]
    model = MODELS[case.model]
    data = _data_of(case, work)
    places = _places_of(case, work, stock=stock)
    flags = shlex.split(program.flags)
    if case.program == "fairseq-train":
        flags += shlex.split(model.stock_flags if stock else model.flags)
    arguments = [_filled(word, places) for word in [str(data), *flags, *case.arguments]]
    with tempfile.TemporaryDirectory(dir=work) as here:
        log = Path(here, "log")
        cwd = Path(here, "cwd")
        cwd.mkdir()

        def run() -> None:
            import importlib

            os.chdir(cwd)
            sys.argv = [case.program, *arguments]
            importlib.import_module(f"fairseq_cli.{program.module}").cli_main()

        ranks = [{}] if case.processes == 1 else _ranks(case.processes)
        statuses = _wait([_fork(run, log, environment) for environment in ranks])
        text = log.read_text(encoding="utf-8", errors="replace")
        text += (cwd / "log.txt").read_text("utf-8") if (cwd / "log.txt").is_file() else ""
    command = shlex.join([case.program, *arguments])
    return _judge(statuses, text, program.done, f"$ {command}\n".replace(str(work), "WORK"))


def _checkpoint_of(case: Case, work: Path, *, stock: bool) -> str:
    """The checkpoint that a case reads, or "" if it reads none."""
    words = f"{PROGRAMS[case.program].flags} {' '.join(case.arguments)}"
    if "{checkpoint}" not in words:
        return ""
    return str(_checkpoint(work, MODELS[case.model], stock=stock))


def _ranks(processes: int) -> list[dict[str, str]]:
    port = str(_free_port())
    return [
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        for rank in range(processes)
    ]


def _judge(statuses: Sequence[int | None], text: str, done: str, command: str) -> Ended:
    log = command + text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    refusals = [line for line in lines if line.startswith("fairseq_kerbs: error: ")]
    if any(status is None for status in statuses):
        return Ended("fails", f"did not end within {LIMIT} seconds", log)
    if all(status == 0 for status in statuses):
        if done in text:
            return Ended("", "", log)
        return Ended("fails", "ended with status 0 without doing its work", log)
    if refusals:
        return Ended("refused", refusals[0].removeprefix("fairseq_kerbs: error: "), log)
    errors = [line for line in lines if _ERROR.match(line)]
    last = (errors or lines or [f"status {statuses}"])[-1]
    return Ended("fails", last, log)


def judged(case: Case, work: Path) -> Row:
    """The row of a case: of both models, if it fails with the plugin's."""
    for name in (f"{case.option} {case.value}", case.option, " ".join(case.flags_beside[:2])):
        if name in SETTINGS["not_run"]:
            return Row(case, "not run", f"needs {SETTINGS['not_run'][name]}")
    ours = attempt(case, work, stock=False)
    if ours.fault == "":
        return Row(case, "works", "", {"ours": ours.log})
    command = with_command(case, work) if case.program in COMMANDS else ""
    if ours.fault == "refused":
        return Row(case, "refused", _plain(ours.sentence, work), {"ours": ours.log}, command)
    stock = attempt(case, work, stock=True)
    logs = {"ours": ours.log, "stock": stock.log}
    outcome = "fails in stock" if stock.fault else "fails"
    return Row(case, outcome, _plain(ours.sentence, work), logs, command)


def with_command(case: Case, work: Path) -> str:
    """Exit status and errors of the command of ours that runs a program, for a case."""
    program = PROGRAMS[case.program]
    model = MODELS[case.model]
    data = _data_of(case, work)
    places = _places_of(case, work, stock=False)
    flags = f"{program.flags} {model.flags}" if case.program == "fairseq-train" else program.flags
    section = COMMANDS[case.program]
    words = [_filled(word, places) for word in shlex.split(flags)]
    with tempfile.TemporaryDirectory(dir=work) as here:
        config = Path(here, "flags.yaml")
        config.write_text(yaml.safe_dump({section: _as_flags(words)}), "utf-8")
        log = Path(here, "log")

        def run() -> None:
            from fairseq_kerbs.cli import main as command

            os.chdir(here)
            given = [_filled(word, places) for word in case.arguments]
            raise SystemExit(command([section, str(config), str(data), "save", *given]))

        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        (status,) = _wait([_fork(run, log, environment)])
        text = log.read_text(encoding="utf-8", errors="replace")
    if "Traceback (most recent call last)" in text:
        return f"{status}: a traceback"
    errors = [line for line in text.splitlines() if re.match(r"[\w-]+: error: ", line)]
    return _plain(f"{status}: {' / '.join(errors)}", work)


def _as_flags(words: Sequence[str]) -> dict[str, str | bool]:
    """Flags of a configuration from words of a command line."""
    flags: dict[str, str | bool] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            flags[name] = True
        else:
            flags[name] = word
    flags.pop("save-dir", None)  # an argument of the command
    return flags


def _without_places(log: str) -> str:
    """A log in which folders of this machine have names of what they are."""
    log = re.sub(r"/\S*?fairseq-kerbs-options-\w+", "WORK", log)
    log = log.replace(sys.prefix, "CHECKOUT/.venv")  # where scripts/install.sh puts it
    return log.replace(str(ROOT), "CHECKOUT").replace(sys.base_prefix, "PYTHON")


def _plain(sentence: str, work: Path) -> str:
    """A sentence without the names of temporary folders."""
    return " ".join(sentence.replace(str(work), "WORK").split())[:300]


# ------------------------------------------------------------------ data


def prepare(work: Path, cases: Sequence[Case]) -> None:
    """Write text, data in the forms that the cases read, and what else they need.

    Models that are read are trained with the first case that reads them, see :func:`_checkpoint`.
    """
    from fairseq_kerbs.data.toy import write_toy_corpus
    from fairseq_kerbs.utils.files import read_lines

    text = work / "text"
    read = {_data_of(case, work) for case in cases}
    with_lm = any(_reads_language_model(case) for case in cases)
    write_toy_corpus(text, **SPLITS)
    source, target = LANGUAGES
    for split in SPLITS:
        pairs = zip(*(read_lines(text / f"{split}.{language}") for language in LANGUAGES))
        links = (
            " ".join(f"{n}-{n}" for n in range(min(len(a.split()), len(b.split()))))
            for a, b in pairs
        )
        (text / f"{split}.align").write_text("".join(f"{line}\n" for line in links), "utf-8")
    (work / "interactive").write_text(
        "".join(f"{line}\n" for line in read_lines(text / f"test.{source}")), "utf-8"
    )
    (work / "codes").write_text("#version: 0.2\ne n</w>\ne r</w>\n", "utf-8")
    common = f"-s {source} -t {target} --trainpref {text}/train --validpref {text}/valid "
    common += f"--testpref {text}/test --workers 1"
    _preprocess(work, f"{common} --destdir {work}/pairs/mmap")
    words = f"--srcdict {work}/pairs/mmap/dict.{source}.txt "
    words += f"--tgtdict {work}/pairs/mmap/dict.{target}.txt"
    alone = f"--only-source --trainpref {text}/train.{target} --validpref {text}/valid.{target} "
    alone += f"--testpref {text}/test.{target} --workers 1 "
    alone += f"--srcdict {work}/pairs/mmap/dict.{target}.txt"
    for form in ("raw", "lazy"):
        impl = f"--dataset-impl {form}"
        if work / "pairs" / form in read:
            _preprocess(work, f"{common} {words} --destdir {work}/pairs/{form} {impl}")
        if work / "lm" / form in read:
            _preprocess(work, f"{alone} --destdir {work}/lm/{form} {impl}")
    if work / "lm" / "raw" in read:
        for split in SPLITS:  # fairseq-preprocess names raw text of a language model otherwise
            shutil.copy(text / f"{split}.{target}", work / "lm" / "raw" / split)
    if work / "pairs" / "aligned" in read:
        _preprocess(work, f"{common} {words} --destdir {work}/pairs/aligned --align-suffix align")
    if with_lm or any(MODELS[case.model].language_model for case in cases):
        _preprocess(work, f"{alone} --destdir {work}/lm/mmap")
    if {work / "pairs" / "huffman", work / "lm" / "huffman"} & read:
        _write_huffman(work)
    for language in LANGUAGES:
        dictionary = work / "pairs" / "mmap" / f"dict.{language}.txt"
        entries = [line.split()[0] for line in read_lines(dictionary)]
        rows = (f"{word} {' '.join(['0.1'] * 8)}\n" for word in entries)
        (work / f"embeddings.{language}").write_text(f"{len(entries)} 8\n{''.join(rows)}", "utf-8")
    (work / "align_dictionary").write_text("haus house\n", "utf-8")
    if with_lm:
        model = MODELS["gru_lm_kerbs"]
        shutil.copytree(_checkpoint(work, model, stock=True).parent, work / "language_model")
        shutil.copytree(work / "pairs" / "mmap", work / "pairs" / "with_lm")
        for folder in (work / "language_model", work / "pairs" / "with_lm"):
            shutil.copy(work / "lm" / "mmap" / "dict.txt", folder)


def _reads_language_model(case: Case) -> bool:
    return case.data == "with_lm" or any("language_model" in word for word in case.arguments)


def _checkpoint(work: Path, model: Model, *, stock: bool) -> Path:
    """Checkpoint of a model after one update, which is trained if it is not there."""
    folder = work / ("stock" if stock else "ours") / model.name
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work) as here:
            made = Path(here, "model")
            _train(work, model, made, stock=stock)
            shutil.copy(made / "checkpoint_last.pt", made / "checkpoint_last_part.pt")
            folder.parent.mkdir(exist_ok=True)
            with suppress(OSError):  # another job was faster
                made.rename(folder)
    return folder / "checkpoint_last.pt"


def _write_huffman(work: Path) -> None:
    """Data in Huffman's code, which fairseq-preprocess does not write."""
    from fairseq.data.huffman import HuffmanCodeBuilder, HuffmanMMapIndexedDatasetBuilder

    from fairseq_kerbs.utils.files import read_lines

    folders = [work / kind / "huffman" for kind in ("pairs", "lm")]
    for folder in folders:
        folder.mkdir(parents=True)
    for language in LANGUAGES:
        texts = {split: read_lines(work / "text" / f"{split}.{language}") for split in SPLITS}
        builder = HuffmanCodeBuilder()
        for lines in texts.values():
            for line in lines:
                builder.add_symbols(*line.split())
        code = builder.build_code()
        ordered = sorted(code, key=lambda node: node.id)
        rows = [f"{node.symbol} {node.count}\n" for node in ordered if node.symbol[0] != "<"]
        for dictionary in (folders[0] / f"dict.{language}.txt", folders[1] / "dict.txt"):
            dictionary.write_text("".join(rows), "utf-8")
        for split, lines in texts.items():
            names = (f"{split}.{'-'.join(LANGUAGES)}.{language}", split)
            for folder, name in zip(folders, names):
                with HuffmanMMapIndexedDatasetBuilder(str(folder / name), code) as written:
                    for line in lines:
                        written.add_item(line.split())


def _preprocess(work: Path, flags: str) -> None:
    def run() -> None:
        from fairseq_cli.preprocess import cli_main

        sys.argv = ["fairseq-preprocess", *shlex.split(flags)]
        cli_main()

    _must(_fork(run, work / "log", {}), work / "log")


def _train(work: Path, model: Model, folder: Path, *, stock: bool) -> None:
    data = work / ("lm" if model.language_model else "pairs") / "mmap"
    flags = model.stock_flags if stock else model.flags

    def run() -> None:
        from fairseq_cli.train import cli_main

        arguments = f"{data} {_TRAIN} {flags} --save-dir {folder} --no-epoch-checkpoints"
        sys.argv = ["fairseq-train", *shlex.split(arguments)]
        cli_main()

    _must(_fork(run, folder.parent / "log", {}), folder.parent / "log")


def _must(child: int, log: Path) -> None:
    (status,) = _wait([child])
    if status != 0:
        print(log.read_text("utf-8")[-3000:], file=sys.stderr)
        raise SystemExit(f"options.py: the data could not be prepared (status {status})")


# ------------------------------------------------------------------ the whole table


def tried(cases: Sequence[Case], work: Path, jobs: int = 1) -> Iterator[Row]:
    """Rows of cases, in their order.

    With several jobs, each of as many processes tries a share of them.
    """
    if jobs == 1:
        for case in cases:
            yield judged(case, work)
        return
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        yield from pool.map(partial(judged, work=work), cases)


def warm_up() -> None:
    """Import what the tries need, so that each forked process has it."""
    import fairseq_cli.eval_lm
    import fairseq_cli.generate
    import fairseq_cli.interactive
    import fairseq_cli.preprocess
    import fairseq_cli.train
    import fairseq_cli.validate  # noqa: F401

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401

    torch.set_num_threads(1)


def read_rows(path: Path) -> dict[Case, Row]:
    """Rows of an earlier run that need not be tried again: all but failures and refusals."""
    found = {}
    lines = path.read_text("utf-8").split("\n") if path.is_file() else []
    for line in lines[:-1]:  # what follows the last line break was not written to its end
        row = json.loads(line)
        values = row.pop("case")
        case = Case(**{**values, "flags_beside": tuple(values["flags_beside"])})
        if not row["outcome"].startswith(("fails", "refused")):
            found[case] = Row(case, **row)
    return found


def _cut_to_whole_lines(path: Path) -> None:
    """Remove a last line that was not written to its end, before others follow it."""
    if path.is_file():
        content = path.read_bytes()
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def write_table(rows: Sequence[Row], folder: Path) -> None:
    """Write options.csv, and the logs of each program and model."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "options.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row.cells() for row in rows)
    raw = folder / "raw"
    raw.mkdir(exist_ok=True)
    logs: dict[str, list[str]] = {}
    for row in rows:
        name = f"{row.case.program}_{row.case.model}.log"
        for model, log in row.logs.items():
            head = f"=== {' '.join(row.case.arguments)} ({model}): {row.outcome}\n"
            logs.setdefault(name, []).append(f"{head}{_without_places(log)}\n")
    for name, parts in logs.items():
        (raw / name).write_text("".join(parts), encoding="utf-8")


def counts(rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown of the number of tries and outcomes by program and model."""
    outcomes = ("works", "refused", "fails in stock", "fails", "not run")
    lines = [f"| program | model | {' | '.join(outcomes)} |", "| --- " * (len(outcomes) + 2) + "|"]
    groups = dict.fromkeys((row[0], row[1]) for row in rows)
    for group in groups:
        found = Counter(row[5] for row in rows if (row[0], row[1]) == group)
        cells = [str(found[outcome]) for outcome in outcomes]
        lines.append(f"| {' | '.join([*group, *cells])} |")
    return lines


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="output folder")
    parser.add_argument(
        "--program", choices=[*PROGRAMS], action="append", help="one of the programs"
    )
    parser.add_argument("--model", choices=[*MODELS], action="append", help="one of the models")
    parser.add_argument("--option", action="append", help="one option, without its dashes")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="try every Nth case alone, as a sample"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="write each row with its logs to FILE. Rows that are there are not tried again, but "
        "for failures and refusals",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of tries at a time")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the options, and write the table."""
    args = parse(arguments)
    warm_up()
    begin = time.monotonic()
    cases = [
        case
        for program in PROGRAMS.values()
        for model in program.models
        if (not args.program or program.name in args.program)
        and (not args.model or model in args.model)
        for case in all_cases(program.name, model)
        if not args.option or case.option[2:] in args.option
    ]
    tried_options = {case.option[2:] for case in cases}
    unknown = [option for option in args.option or () if option not in tried_options]
    if unknown:
        raise SystemExit(
            f"options.py: --option {unknown[0]}: the chosen programs and models have no such option"
        )
    cases = cases[:: args.every]
    partial = bool(args.program or args.model or args.option or args.every > 1)
    if partial and (args.folder / "options.csv").exists():
        raise SystemExit(
            f"options.py: {args.folder}/options.csv exists, and these are not all cases; name "
            "another folder"
        )
    done = {}
    if args.rows is not None:
        done = read_rows(args.rows)
        _cut_to_whole_lines(args.rows)
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-options-") as temporary:
        work = Path(temporary).resolve()
        new = [case for case in cases if case not in done]
        prepare(work, new)
        for row in tried(new, work, args.jobs):
            done[row.case] = row
            if row.outcome != "works":
                print(json.dumps(row.cells(), ensure_ascii=False), flush=True)
            if args.rows is not None:
                with args.rows.open("a", encoding="utf-8") as stream:
                    stream.write(row.as_json() + "\n")
    rows = [done[case] for case in cases]
    write_table(rows, args.folder)
    print("\n".join(counts([row.cells() for row in rows])))
    print(f"{len(rows)} tries in {(time.monotonic() - begin) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
