"""The command line, the scripts around it, and the self-check, run as a user runs them."""

import argparse
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_kerbs import __version__
from fairseq_kerbs.benchmarks.likelihood import make_inputs
from fairseq_kerbs.cli import EXAMPLES, build_parser, main
from fairseq_kerbs.commands import self_check
from fairseq_kerbs.kernels import KerbsKernel
from fairseq_kerbs.likelihood import compilation
from fairseq_kerbs.likelihood.passes import LogSumExp
from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.models.config import FLAGS
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, find_program
from tests.commands.test_bad_input import SUBCOMMANDS
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.commands import ROOT, run, run_program


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: fairseq-kerbs {name} ")
    assert f"\nexamples:\n  fairseq-kerbs {name}" in shown


@pytest.mark.parametrize("example", EXAMPLES.split("\n")[1:-1])
def test_examples_are_command_lines(example: str) -> None:
    args, extra = build_parser().parse_known_args(shlex.split(example.partition("<")[0]))
    assert extra == [] or args.passes_on


def test_train_help_has_every_flag_of_the_plugin_with_its_default() -> None:
    shown = run("fairseq-kerbs", "train", "--help")
    pattern = r"^  (--[a-z-]+)[^-]*?(?: |\n)(.*?)(?=\n  --|\n\n)"
    flags = dict(re.findall(pattern, shown, re.S | re.M))
    assert set(FLAGS.values()) - {"---name"} <= flags.keys()
    for flag, default in (("--total-senses", "3.0"), ("--reallocation", "paper")):
        assert flags[flag].rstrip().endswith(f"[{default}]")
    assert shown.count("\n  --kernel ") == 1
    assert re.search(r"--label-smoothing.*smoothing \[0\.0\]", shown, re.S)
    assert "multi30k/lstm_kerbs," in shown.split()
    assert shown.count("usage:") == 1


def test_architectures_are_the_registered_ones_with_their_sizes() -> None:
    sizes, common, varying = run("fairseq-kerbs", "architectures").split("\n\n")
    rows = {line.split()[0]: line.split(maxsplit=7)[1:] for line in sizes.splitlines()[1:]}
    assert list(rows) == [name for presets in PRESETS.values() for name in presets]
    paper = ["288", "-", "507", "5", "2", "0.1", "Transformer, sequence to sequence (Section 5.1)"]
    assert rows["transformer_kerbs_iwslt"] == paper
    assert rows["gru_kerbs_dialog"][:6] == ["512", "1024", "-", "1", "-", "0.1"]
    published = (
        "--output-layer kerbs --kernel kerbs --total-senses 3.0 --max-senses 4 "
        "--sense-allocation random --reallocation paper --reallocation-interval 200"
    )
    assert common.startswith(f"The output layer of all: {published} ")
    assert "--composition posterior --composition-passes 1 --sense-bias False" in common
    head, *others = [line.split() for line in varying.splitlines()]
    scales = {row[0]: row[head.index("--init-scale")] for row in others}
    assert list(scales) == list(rows)
    assert scales["transformer_kerbs"] == "1.0"


def test_packages_are_imported_where_they_are_needed(tmp_path: Path) -> None:
    """One that is missing there is told in one sentence."""
    start = "import sys; from fairseq_kerbs.cli import main; "
    told = f"{start}main(sys.argv[1:]); assert not {{'fairseq', 'torch'}} & sys.modules.keys()"
    shown = run_program(sys.executable, "-c", told, "user-dir", cwd=tmp_path)
    assert shown == f"{PLUGIN_FOLDER}\n"
    shown = run_program(sys.executable, "-m", "fairseq_kerbs.cli", "--version", cwd=tmp_path)
    assert shown == f"fairseq-kerbs {__version__}\n"
    told = f"import sys; sys.modules['yaml'] = None; {start}sys.exit(main(sys.argv[1:]))"
    arguments = ("train", "toy", "data", "save", "--dry-run")
    shown = run_program(sys.executable, "-c", told, *arguments, cwd=tmp_path, status=2)
    said = "yaml is not installed; run pip install 'fairseq_kerbs[fairseq,analysis,tables]'"
    assert shown == f"fairseq-kerbs: error: {said}\n"
    # generated text and conversions need fairseq alone
    code = "import sys; sys.modules.update(dict.fromkeys(('pandas', 'sklearn', 'scipy'))); "
    code += "import fairseq_kerbs.analysis.printed_senses, fairseq_kerbs.checkpoints.conversion"
    run_program(sys.executable, "-c", code, cwd=tmp_path)


def test_flags_passed_on_keep_their_order_and_are_not_abbreviations_of_ours() -> None:
    arguments = ["generate", "c", "d", "s", "--beam", "3", "--dry-run", "--ref", "x", "--out=y"]
    args, extra = build_parser().parse_known_args(arguments)
    assert extra == ["--beam", "3", "--ref", "x", "--out=y"]
    assert (args.dry_run, args.reference) == (True, None)


def run_instead(monkeypatch: Patch, function: Callable[[Any], int]) -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=function)
    monkeypatch.setattr("fairseq_kerbs.cli.build_parser", lambda: parser)


def test_a_terminated_command_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminated(args: argparse.Namespace) -> int:
        with atomic_write(tmp_path / "file"):
            signal.raise_signal(signal.SIGTERM)
        return 0

    run_instead(monkeypatch, terminated)
    try:
        with pytest.raises(SystemExit, match="143"):
            main([])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_command(monkeypatch: Patch, capsys: Capsys) -> None:
    run_instead(monkeypatch, mock.Mock(side_effect=KeyboardInterrupt))
    assert main([]) == 130
    assert capsys.readouterr().err == "fairseq-kerbs: interrupted; run the same command again\n"


def test_detokenize_command(tmp_path: Path, capsys: Capsys) -> None:
    generated, out = tmp_path / "generate-test.txt", tmp_path / "o"
    generated.write_text("H-1\t-1\tIt is Anna 's .\nH-0\t-1\tGood mor@@ ning , all of you !\n")
    shown = kerbs(capsys, "detokenize", "--lang", "en", generated, "-o", out)
    assert out.read_text() == "Good morning, all of you!\nIt is Anna's.\n"
    assert shown == f"wrote {out}\n"
    flags = ("detokenize", "--lang", "de")
    raw = run("fairseq-kerbs", *flags, stdin="Schöne Grüße , Anna !\n")
    assert raw == "Schöne Grüße, Anna!\n"


def test_dry_run_prints_the_command_and_its_sources(tmp_path: Path, capsys: Capsys) -> None:
    """The command line is put over the configuration."""
    (base := tmp_path / "base.yaml").write_text("train:\n  adam-betas: (0.9, 0.98)\n  lr: 1\n")
    text = "extends: base.yaml\ntrain: {reallocation-at: 0.5, total-senses: 1.25}\n"
    (config := tmp_path / "a.yaml").write_text(text)
    (tmp_path / "dict.en.txt").touch()
    arguments = ["train", config, tmp_path, "save dir", "--dry-run"]
    source, command = kerbs(capsys, *arguments, "--seed", 2).splitlines()
    assert source == f"# flags: {config}, {base}; command line"
    assert shlex.split(command) == [
        find_program("fairseq-train"),
        str(tmp_path),
        "--user-dir",
        str(ROOT / "fairseq_kerbs"),
        "--save-dir",
        "save dir",
        "--adam-betas",
        "(0.9, 0.98)",
        "--lr",
        "1",
        "--reallocation-at",
        "0.5",
        "--total-senses",
        "1.25",
        "--seed",
        "2",
    ]
    command = kerbs(capsys, *arguments, "--total-senses", 2).splitlines()[1]
    assert command.endswith(" --total-senses 2")
    assert command.count("--total-senses ") == 1
    assert kerbs(capsys, "generate", *arguments[1:]).endswith(" > 'save dir/generate-test.txt'\n")


def test_scripts_are_commands() -> None:
    paths = [path for path in (ROOT / "scripts").glob("*.sh") if "\nkerbs " in path.read_text()]
    for path in paths:
        command = path.stem.replace("_", "-").replace("prepare-parallel", "prepare")
        assert path.read_text().endswith(f'\nkerbs {command} "$@"\n')
        assert command in SUBCOMMANDS
    assert len(paths) == 10


def test_scripts_without_fairseq_say_what_to_run(tmp_path: Path) -> None:
    """A copy of the scripts without .venv, under a Python without fairseq."""
    scripts, tools = shutil.copytree(ROOT / "scripts", tmp_path / "scripts"), tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "basename", "dirname", "readlink", "sed"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    said = run_program(scripts / "train.sh", "x", cwd=tmp_path, status=1, PATH=str(tools))
    assert said == f"train.sh: no fairseq found; run {tmp_path}/scripts/install.sh first\n"


@pytest.fixture(autouse=True)
def _small(monkeypatch: Patch) -> None:
    monkeypatch.setitem(self_check.SIZES["larger"], "vocab", 500)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    make_inputs.cache_clear()


def lines(shown: str) -> dict[str, tuple[str, str]]:
    """What was found and the verdict, by line."""
    found = re.findall(r"(.{40}) (.{42}) (.{13}) (ok|OFF)$", shown, re.MULTILINE)
    return {what.strip(): (value.strip(), verdict) for what, value, _, verdict in found}


@pytest.mark.slow
def test_this_machine_is_in_order(capsys: Capsys) -> None:
    shown = kerbs(capsys, "self-check", "--quick")
    found = lines(shown)
    assert {verdict for _, verdict in found.values()} == {"ok"}
    assert found["likelihood, larger, bfloat16, eager"]
    assert re.search(r"[1-9]\d* senses moved", found["training, 20 updates"][0])
    assert found["training, 10 + 10 updates"][0].startswith("0 of ")
    assert shown.startswith("Python")
    assert shown.endswith("all is as it should be\n")
    assert "time: " not in shown


def test_a_wrong_gradient_is_named(monkeypatch: Patch, capsys: Capsys) -> None:
    for name in ("_train", "_resume"):
        monkeypatch.setattr(self_check, name, lambda *_, **__: self_check.Outcome(""))
    stock = KerbsKernel.partials

    def partials(*arguments: Any) -> Any:
        found = stock(*arguments)
        return found._replace(theta=1.001 * found.theta)

    monkeypatch.setattr(KerbsKernel, "partials", partials)
    shown = kerbs(capsys, "self-check", "--quick", status=1)
    found = lines(shown)
    for size in ("small", "larger"):
        assert found[f"likelihood, {size}, float32, eager"] == ("1.0e-03 of dθ", "OFF")
    assert shown.endswith("OFF: 2\n")  # float16 and bfloat16 round more coarsely


def test_an_error_is_a_line_and_the_others_follow(monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setattr(self_check, "_train", mock.Mock(side_effect=RuntimeError("two\nlines")))
    for name in ("_likelihood", "_resume"):
        monkeypatch.setattr(self_check, name, lambda *_: self_check.Outcome(""))
    monkeypatch.setattr(self_check, "_time", lambda *_: self_check.Outcome("1 s"))
    shown = kerbs(capsys, "self-check", status=1)
    assert lines(shown)["training, 20 updates"] == ("RuntimeError: two lines", "OFF")
    assert "training, 10 + 10" in shown
    assert len(re.findall("^time: .* 1 s", shown, re.MULTILINE)) == 3


def test_compiled_passes_are_compared(monkeypatch: Patch) -> None:
    """A wrong result of what is compiled is seen, and a compiler that fails."""
    inputs = {**self_check.SIZES["small"], "dtype": "float32", "device": "cpu", "seed": 1}
    monkeypatch.setenv(compilation.SWITCH, "0")
    assert self_check._likelihood(inputs, True).right is None
    monkeypatch.delenv(compilation.SWITCH)
    monkeypatch.setattr(compilation, "_works", True)
    monkeypatch.setattr(compilation, "_called", set())
    monkeypatch.setattr(compilation, "_compiled", lambda function: function)
    assert self_check._likelihood(inputs, True).right

    def doubled(function: Any) -> Any:
        if "logsumexp" not in str(function):
            return function
        return lambda logits: LogSumExp(torch.zeros_like(logits[0]), torch.zeros_like(logits[0]))

    monkeypatch.setattr(compilation, "_compiled", doubled)
    assert self_check._likelihood(inputs, True).right is False
    monkeypatch.setattr(compilation, "_called", set())
    monkeypatch.setattr(compilation, "_compiled", mock.Mock(side_effect=OSError("no compiler")))
    assert self_check._likelihood(inputs, True).value == "torch.compile failed"
    assert self_check._likelihood(inputs, True).right is None


@pytest.mark.parametrize("apart", [0.0, 1e-7])
def test_resuming_gives_the_same_bits(apart: float, monkeypatch: Patch, tmp_path: Path) -> None:
    def train(folder: Path, device: str, name: str, updates: int = 20) -> None:
        values = torch.ones(3, dtype=torch.float64) + apart * (name == "resumed")
        state = {"state": {0: {"exp_avg": values, "step": 20}}}
        (folder / name).mkdir(exist_ok=True)
        saved = {"model": {"x._float_tensor": torch.rand(1)}, "last_optimizer_state": state}
        torch.save(saved, folder / name / "checkpoint_last.pt")

    train(tmp_path, "cpu", "straight")
    monkeypatch.setattr(self_check, "_train", train)
    differ = int(apart > 0)
    assert self_check._resume(tmp_path, "cpu").right == (not differ)
    found = self_check._resume(tmp_path, "cuda")
    assert (found.right, found.value) == (True, f"{differ} of 1 tensors differ, by {apart:.1e}")
