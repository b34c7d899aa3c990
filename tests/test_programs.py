"""Flags in effect are those that fairseq's own parser reads, in every spelling."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from fairseq import options
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY

from fairseq_kerbs.cli.generate import languages_of_text, plan_generation
from fairseq_kerbs.configurations import (
    CONFIGS,
    Experiment,
    Flags,
    StagedPlacement,
    load_experiment,
)
from fairseq_kerbs.program_checks import INTERVALS, check_call, checkpoints_of
from fairseq_kerbs.programs import GENERATE, TRAIN, read_call
from fairseq_kerbs.training.staged import Training, check_training
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.intervals import within
from tests.helpers.cli import Capsys, kerbs

SHORT = {"source-lang": "-s", "target-lang": "-t", "arch": "-a"}
OTHER_NAMES = {"batch-size": "--max-sentences", "post-process": "--remove-bpe"}


def spellings(flag: str, value: str, other: str) -> list[list[str]]:
    """All ways to give a flag a value. In the last one it was given another value before."""
    name = f"--{flag}"
    ways = [[name, value], [f"{name}={value}"], [name, other, f"{name}={value}"]]
    if flag in SHORT:
        ways += [[SHORT[flag], value], [f"{SHORT[flag]}{value}"], [name, other, SHORT[flag], value]]
    if flag in OTHER_NAMES:
        ways += [[OTHER_NAMES[flag], value], [f"{OTHER_NAMES[flag]}={value}"]]
    return ways


def cases(given: dict[str, tuple[str, str]]) -> list[tuple[str, str, list[str]]]:
    return [
        (flag, value, way)
        for flag, (value, other) in given.items()
        for way in spellings(flag, value, other)
    ]


READ_BY_GENERATE = {
    "path": ("a.pt:b.pt", "c.pt"),
    "gen-subset": ("valid", "test"),
    "source-lang": ("en", "de"),
    "target-lang": ("de", "en"),
    "checkpoint-suffix": ("_x", "_y"),
    "post-process": ("sentencepiece", "letter"),
    "results-path": ("r", "s"),
    "batch-size": ("3", "4"),
    "min-len": ("3", "4"),
    "max-len-b": ("30", "40"),
}
READ_BY_TRAIN = {
    "arch": ("gru_kerbs", "lstm_kerbs"),
    "optimizer": ("sgd", "nag"),
    "save-dir": ("x", "y"),
    "lr-scheduler": ("fixed", "inverse_sqrt"),
    "max-update": ("7", "8"),
    "max-senses": ("3", "2"),
    "kernel": ("lin", "log"),
    "train-subset": ("valid", "test"),
    "valid-subset": ("test", "valid"),
    "restore-file": ("x.pt", "y.pt"),
    "finetune-from-model": ("x.pt", "y.pt"),
    "source-lang": ("en", "de"),
    "batch-size": ("3", "4"),
}


@pytest.mark.parametrize(
    ("program", "flag", "value", "way"),
    [
        *((GENERATE, *case) for case in cases(READ_BY_GENERATE)),
        *((TRAIN, *case) for case in cases(READ_BY_TRAIN)),
    ],
)
def test_a_flag_in_every_spelling(program: str, flag: str, value: str, way: list[str]) -> None:
    """It overrides the configuration, and fairseq reads the same from the arguments."""
    of_train: Flags = {"arch": "transformer_kerbs", "optimizer": "adam", "max-update": "99"}
    of_generate: Flags = {"path": "z.pt", "gen-subset": "train", "remove-bpe": True}
    flags = of_train if program == TRAIN else of_generate
    call = read_call(program, "DATA", flags, way)
    name = flag.replace("-", "_")
    assert str(getattr(call.values, name)) == value
    assert name in call.on_command_line
    parser = options.get_training_parser() if program == TRAIN else options.get_generation_parser()
    arguments = call.arguments[:1] + call.arguments[3:]  # without --user-dir
    assert str(getattr(options.parse_args_and_arch(parser, arguments), name)) == value


def test_what_fairseq_does_not_read_is_refused() -> None:
    """Abbreviations, too, which fairseq's parser does not allow."""
    toy = load_experiment(CONFIGS / "toy.yaml")
    for extra, said in {
        ("--max-upd", "3"): "unrecognized arguments: --max-upd 3; did you mean --max-update?",
        ("--max-update",): "argument --max-update: expected one argument",
        ("--max-update", "x"): "argument --max-update: invalid int value: 'x'",
        ("--lr", "x"): "argument --lr: invalid value: 'x'",
        ("more",): "unrecognized arguments: more",
        ("--beam", "3", "--nbest", "2"): "unrecognized arguments: --beam 3 --nbest 2",
    }.items():
        with pytest.raises(UserError) as refused:
            read_call(TRAIN, "DATA", toy.train, extra)
        assert str(refused.value) == said
        assert refused.value.code == f"fairseq-train: error: {said}"


# ------------------------------------------------------------------ the commands decide by them


@pytest.fixture(scope="module")
def bin_folder(tiny_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized data beside the record of their preparation."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(tiny_work / "bin", folder / "bin")
    record = {"source_lang": "de", "target_lang": "en", "bpe": "none"}
    (folder / "preparation.json").write_text(json.dumps(record))
    return folder / "bin"


@pytest.mark.parametrize(("flag", "value", "way"), cases({"gen-subset": ("valid", "test")}))
def test_generate_names_its_output_by_the_split(
    flag: str, value: str, way: list[str], bin_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    command = ["generate", "toy", bin_folder, tmp_path, *way, "--dry-run"]
    assert kerbs(capsys, *command).endswith(f"> {tmp_path}/generate-{value}.txt\n")


LANGUAGES = [
    [*source, *target]
    for source in spellings("source-lang", "en", "de")
    for target in spellings("target-lang", "de", "en")
]


@pytest.mark.parametrize("way", LANGUAGES)
def test_translate_takes_the_languages_of_the_flags(way: list[str], bin_folder: Path) -> None:
    experiment = load_experiment(CONFIGS / "toy.yaml")
    call = plan_generation(experiment, str(bin_folder), "save", way, print_senses=False)
    assert languages_of_text(call, str(bin_folder)) == ("en", "de")


@pytest.mark.parametrize(
    ("train", "generate", "way", "task"),
    [
        ({}, {}, [], "translation"),
        ({"task": "language_modeling"}, {}, [], "language_modeling"),
        ({"task": "language_modeling"}, {"task": "translation"}, [], "translation"),
        ({"task": "language_modeling"}, {}, ["--task", "translation"], "translation"),
    ],
)
def test_a_model_generates_in_the_task_of_its_training(
    train: Flags, generate: Flags, way: list[str], task: str, bin_folder: Path
) -> None:
    experiment = Experiment((), train, generate)
    call = plan_generation(experiment, str(bin_folder), "save", way, print_senses=False)
    assert call.values.task == task


def test_languages_of_a_folder_of_dictionaries(bin_folder: Path, tmp_path: Path) -> None:
    """They are those of the record; without it, those of the flags, as a message asks for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for file in bin_folder.glob("dict.*.txt"):
        shutil.copy(file, folder)
    experiment = Experiment((), {}, {})

    def languages(*way: str) -> tuple[str, str]:
        call = plan_generation(experiment, str(folder), "save", way, print_senses=False)
        return languages_of_text(call, str(folder))

    with pytest.raises(UserError, match="give --source-lang and --target-lang"):
        languages()
    assert languages("--source-lang", "de", "--target-lang", "en") == ("de", "en")
    shutil.copy(bin_folder.parent / "preparation.json", tmp_path)
    assert languages() == ("de", "en")
    assert languages("-s", "en", "-t", "de") == ("en", "de")
    assert languages("-s", "de") == ("de", "en")
    with pytest.raises(UserError, match="give --source-lang and --target-lang"):
        languages("-s", "en")
    shutil.copy(bin_folder / "dict.de.txt", folder / "dict.fr.txt")
    with pytest.raises(UserError, match="fr is not read alone, and the data are from de to en"):
        languages("-s", "fr")


@pytest.mark.parametrize("way", spellings("path", "a.pt:b.pt", "c.pt"))
@pytest.mark.parametrize("suffix", spellings("checkpoint-suffix", "_x", "_y"))
def test_checkpoints_of_generate(way: list[str], suffix: list[str]) -> None:
    call = read_call(GENERATE, "DATA", {"path": "z.pt"}, [*way, *suffix])
    assert checkpoints_of(call) == [Path("a_x.pt"), Path("b_x.pt")]


OF_STEPS = {
    "max-update": ("50", "60"),
    "max-senses": ("3", "5"),
    "lr-scheduler": ("polynomial_decay", "fixed"),
    "total-num-update": ("500", "600"),
    "train-subset": ("a", "b"),
    "valid-subset": ("c", "d"),
}


@pytest.mark.parametrize(("flag", "value", "way"), cases(OF_STEPS))
def test_the_staged_recipe_reads_each_spelling(flag: str, value: str, way: list[str]) -> None:
    flags: Flags = {"save-dir": "save", "arch": "lstm_kerbs", "optimizer": "adam"}
    flags |= {"max-update": "99", "lr-scheduler": "polynomial_decay"}
    training = Training("data", "save", flags, tuple(way))
    given = check_training(training, StagedPlacement(0.5, 2.0, {})).values
    assert str(getattr(given, flag.replace("-", "_"))) == value


OF_ONE_STEP = {
    "total-senses": ("2", "3"),
    "restore-file": ("x", "y"),
    "finetune-from-model": ("x", "y"),
    "max-epoch": ("3", "4"),
    "checkpoint-suffix": ("_x", "_y"),
    "save-dir": ("other", "another"),
    "kernel": ("lin", "log"),
}


@pytest.mark.parametrize(("flag", "value", "way"), cases(OF_ONE_STEP))
def test_the_staged_recipe_refuses_each_spelling(flag: str, value: str, way: list[str]) -> None:
    flags: Flags = {"save-dir": "save", "arch": "lstm_kerbs", "optimizer": "adam"}
    training = Training("data", "save", {**flags, "max-update": "99"}, tuple(way))
    with pytest.raises(UserError, match=f"--{flag}.* does not go with a configuration"):
        check_training(training, StagedPlacement(0.5, 2.0, {}))


# ------------------------------------------------------------------ parts that replace others


def own_flags(part: type, every: bool = False) -> dict[str, str]:
    """Flags of a part with the texts of their defaults, if these are plain, or all of them."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False)
    part.add_args(parser)  # type: ignore[attr-defined]
    flags = {}
    for action in parser._actions:
        plain = every or (isinstance(action.default, (int, float, str)) and action.nargs != 0)
        if action.option_strings and plain:
            flags[action.option_strings[0][2:]] = str(action.default)
    return flags


OPTIMIZERS = sorted({*OPTIMIZER_REGISTRY} - {"composite"})
SCHEDULES = sorted({*LR_SCHEDULER_REGISTRY} - {"pass_through"})
PAIRS = [  # each is replaced once, and replaces another once
    *(("optimizer", old, new) for old, new in zip(OPTIMIZERS, OPTIMIZERS[1:] + OPTIMIZERS[:1])),
    *(("lr-scheduler", old, new) for old, new in zip(SCHEDULES, SCHEDULES[1:] + SCHEDULES[:1])),
]


@pytest.mark.parametrize(("chooser", "old", "new"), PAIRS)
def test_the_flags_of_a_replaced_part_are_dropped(chooser: str, old: str, new: str) -> None:
    """Those that the new part has as well are kept."""
    registry = OPTIMIZER_REGISTRY if chooser == "optimizer" else LR_SCHEDULER_REGISTRY
    before = own_flags(registry[old])
    before.pop("max-update", None)  # of the whole training
    base: Flags = {"arch": "lstm_kerbs", "optimizer": "adam", "lr": "0.1", chooser: old}
    both = set(own_flags(registry[new], every=True))
    needed = {"triangular": ["--max-lr", "0.1"]}.get(new, [])
    call = read_call(TRAIN, "DATA", {**base, **before}, [f"--{chooser}", new, *needed])
    gone = sorted(f"--{name}" for name in before if name not in both)
    assert sorted(flag for flags in call.dropped.values() for flag in flags) == gone
    assert {*call.dropped} <= {f"--{chooser} {new}"}
    assert getattr(call.values, chooser.replace("-", "_")) == new
    assert not {*gone} & {*call.arguments}


def test_a_flag_that_a_part_needs_is_asked_for() -> None:
    flags: Flags = {"arch": "lstm_kerbs", "optimizer": "adam"}
    with pytest.raises(UserError, match=r"^--max-lr is missing; give it"):
        read_call(TRAIN, "DATA", flags, ["--lr-scheduler", "triangular"])
    with pytest.raises(UserError, match=r"^--bpe-codes is missing; give it"):
        read_call(GENERATE, "DATA", {}, ["--bpe", "subword_nmt"])


def test_flags_of_a_replaced_architecture_and_what_is_said(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "dict.en.txt").touch()
    command = ["train", "toy", tmp_path, tmp_path / "save", "--dry-run"]
    told = kerbs(capsys, *command, "-a", "lstm_kerbs", "--lr-scheduler=inverse_sqrt").splitlines()
    sizes = ["embed-dim", "ffn-embed-dim", "layers", "attention-heads"]
    gone = [f"--{side}-{size}" for size in sizes for side in ("encoder", "decoder")]
    assert told[1:3] == [
        f"# left out of the configuration, by --arch lstm_kerbs: {', '.join(gone)}",
        "# left out of the configuration, by --lr-scheduler inverse_sqrt: --total-num-update",
    ]
    words = shlex.split(told[3])
    assert not {*gone, "--total-num-update"} & {*words}
    assert words[words.index("--warmup-updates") + 1] == "200"  # which both schedules have
    assert len(kerbs(capsys, *command).splitlines()) == 2


@pytest.mark.parametrize("value", ["True", "yes", "1"])
def test_a_switch_of_a_configuration_is_true_or_false(value: str) -> None:
    flags: Flags = {"arch": "lstm_kerbs", "optimizer": "adam", "cpu": value}
    with pytest.raises(UserError, match=f"'cpu: {value}', but --cpu is a switch; write 'cpu: true"):
        read_call(TRAIN, "data", flags)


def test_a_flag_that_no_part_has_is_not_dropped() -> None:
    flags: Flags = {"arch": "lstm_kerbs", "optimizer": "adam", "adam-beats": "1"}
    with pytest.raises(UserError, match="unrecognized arguments: --adam-beats 1; did you mean"):
        read_call(TRAIN, "DATA", flags, ["--optimizer", "adamax"])


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("name", INTERVALS)
def test_defaults_of_fairseq_are_within_their_intervals(name: str) -> None:
    """A name that fairseq does not have would check nothing."""
    found = False
    for program, extra in (
        (TRAIN, ["--arch", "lstm", "--optimizer", "adam", "--lr-scheduler", "polynomial_decay"]),
        (TRAIN, ["--arch", "lstm_lm", "--optimizer", "adam", "--task", "language_modeling"]),
        (TRAIN, ["--arch", "lstm_kerbs", "--optimizer", "adam", "--criterion=kerbs_cross_entropy"]),
        (GENERATE, ["--path", "x.pt"]),
    ):
        values = vars(read_call(program, "DATA", {}, extra).values)
        value = values.get(name)
        found = found or name in values
        for number in value if isinstance(value, list) else [value]:
            assert number is None or within(number, INTERVALS[name])
    assert found


def test_all_configurations_pass(tmp_path: Path) -> None:
    """As they are, and with the data of their task."""
    for language in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        (tmp_path / language).touch()
    for path in [*sorted(CONFIGS.glob("*/*.yaml")), CONFIGS / "toy.yaml"]:
        if path.parent.name in ("tables", "snakemake") or "base" in path.name:
            continue
        experiment = load_experiment(path)
        call = read_call(TRAIN, str(tmp_path), {**experiment.train, "save-dir": str(tmp_path)})
        check_call(call, str(tmp_path), dry_run=True)
        generation = read_call(GENERATE, str(tmp_path), {"path": "x.pt", **experiment.generate})
        check_call(generation, str(tmp_path), dry_run=True)
        assert not call.dropped
