"""fairseq's commands and ours as a user runs them, without the seconds that their imports take.

A server has imported torch and fairseq. For every command it forks a process, which has arguments,
folder, environment, output and exit status of its own, as a newly started one has; of this package
it has imported nothing.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests.helpers import HANGS

ROOT, PROGRAMS = Path(__file__).resolve().parents[2], Path(sys.executable).parent
USER_DIR = ("--user-dir", ROOT / "fairseq_kerbs")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
# the second line for the first optimizer, and for its flag
IMPORTED = (
    "fairseq.trainer",
    "fairseq.model_parallel",
    "sacrebleu",
    "sacremoses",
    "scipy.sparse",
    "torch._dynamo",
    "torch.utils.tensorboard",
)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


@dataclass
class Command:
    """A console script, such as fairseq-train."""

    program: str
    arguments: Sequence[object]  # which have texts, such as paths and numbers
    stdin: str = ""  # what it reads
    cwd: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)  # besides that of the tests
    prepare: Mapping[str, str] = field(default_factory=dict)  # ``module:function``: its argument


def run(program: str, *arguments: object, status: int = 0, **more: Any) -> str:
    """All that a command prints; `more` is of `Command`. It must end with this exit status."""
    ((ended, output),) = run_together(Command(program, arguments, **more))
    assert ended == status, output[-6000:]
    return output


def run_together(*commands: Command) -> list[tuple[int, str]]:
    """Exit status and output of commands that run side by side."""
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        calls = []
        for number, command in enumerate(commands):
            stdin, stdout = (Path(folder, f"{name}{number}") for name in ("in", "out"))
            stdin.write_text(command.stdin)
            calls.append(asdict(command) | {"stdin": stdin, "stdout": stdout})
        print(json.dumps(calls, default=str), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], HANGS)[0]:
            server.kill()
        answer = server.stdout.readline()
        if not answer:
            _server.cache_clear()
            raise AssertionError(f"the server has ended, or these hang: {commands}")
        outputs = [call["stdout"].read_text(errors="replace") for call in calls]
    return list(zip(json.loads(answer), outputs, strict=True))


def run_program(*command: object, status: int = 0, cwd: Path = ROOT, **more: str) -> str:
    """All that a newly started program prints, where a fork would not show the same."""
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    how |= {"env": os.environ | ENVIRONMENT | more, "timeout": HANGS}
    done = subprocess.run([*map(str, command)], cwd=cwd, **how)
    assert done.returncode == status, done.stdout[-6000:]
    return done.stdout


@functools.cache
def _server() -> Any:
    """It ends when this process does, and its standard input is closed."""
    how: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    command = [sys.executable, "-m", "tests.helpers.commands"]
    server = subprocess.Popen(command, env=os.environ | ENVIRONMENT, **how)
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Answer every line of commands by a line of their exit statuses."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    for module in IMPORTED:
        importlib.import_module(module)
    _parse_flags()
    gc.freeze()  # a collection would write to, and so copy, all that a fork shares with us
    for line in requests:
        processes = []
        for call in json.loads(line):
            processes.append(os.fork())
            if processes[-1] == 0:
                _become(call)
        ended = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in processes]
        print(json.dumps(ended), file=answers, flush=True)


def _parse_flags() -> None:
    """As every command of fairseq does: Hydra's parser is slow until it has seen such flags."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from hydra.core.global_hydra import GlobalHydra

    parser = options.get_training_parser()
    convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["", "--arch", "lstm"]))
    GlobalHydra.instance().clear()


def _become(call: dict[str, Any]) -> None:
    """Be the program, to its exit."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # end with the server
    os.dup2(os.open(call["stdin"], os.O_RDONLY), 0)
    os.dup2(os.open(call["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    os.chdir(call["cwd"])
    os.environ |= call["environment"]
    sys.argv = [call["program"], *map(str, call["arguments"])]
    for target, argument in call["prepare"].items():
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(argument)
    (script,) = entry_points(group="console_scripts", name=call["program"])
    try:
        status = script.load()()
    except SystemExit as ending:
        status = ending.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)  # to take all modules apart would take longer than most commands


if __name__ == "__main__":
    _serve()
