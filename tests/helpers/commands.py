"""fairseq's commands and ours as a user runs them, without the seconds that their imports take.

A server has imported torch and fairseq. For every command it forks a process, which has arguments,
folder, environment, output and exit status of its own, as a newly started one has; of this package
it has imported nothing.

:func:`stand_ins` is a folder of programs of the same names, which ask this server, in a virtual
environment of its own. With :func:`standing_in` as its environment a shell runs them, and so does a
script of ours in a checkout of :func:`make_checkout`.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
# for the commands of the analysis
IMPORTED_IF_INSTALLED = (
    "jinja2",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "pandas",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.discriminant_analysis",
    "sklearn.feature_extraction.text",
    "sklearn.model_selection",
)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_STAND_IN = """#!{python} -IS
import json, os, socket, sys
name = os.path.basename(sys.argv[0])
arguments = sys.argv[1:]
if name in ("python", "python3"):
    if "-m" not in arguments[:2] or "fairseq_kerbs.cli" not in arguments[:3]:
        os.execv({python!r}, [sys.argv[0], *arguments])
    name = "fairseq-kerbs"
    arguments = arguments[arguments.index("-m") + 2 :]
call = {{"program": name, "arguments": arguments, "cwd": os.getcwd()}}
call["environment"] = {{**os.environ}}
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps(call).encode() + b"\\n"
server.sendall(request[socket.send_fds(server, [request], [0, 1, 2]) :])
answer = server.makefile().readline()
status = int(answer) if answer else 1
sys.exit(status if status >= 0 else 128 - status)
"""
STANDING_IN = "FAIRSEQ_KERBS_TEST_PYTHON"
"""Environment variable for a command of ours that shall run :func:`stand_ins`: their python."""
STAND_INS = (
    "fairseq-eval-lm",
    "fairseq-generate",
    "fairseq-hydra-train",
    "fairseq-kerbs",
    "fairseq-preprocess",
    "fairseq-train",
    "python",
    "python3",
)


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


def run_forked(program: str, *arguments: object, **more: Any) -> str:
    """As :func:`run`, where the commands that this one starts are forks of the server, too."""
    environment = {STANDING_IN: str(stand_ins() / "python")}
    return run(program, *arguments, environment=environment, **more)


def run_together(*commands: Command) -> list[tuple[int, str]]:
    """Exit status and output of commands that run side by side."""
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        calls = []
        for number, command in enumerate(commands):
            stdin = Path(folder, f"in{number}")
            stdin.write_text(command.stdin)
            stdout = Path(folder, f"out{number}")
            call = asdict(command) | {"environment": server.environment | {**command.environment}}
            del call["stdin"]
            with stdin.open() as reading, stdout.open("a") as writing:
                files = [reading.fileno(), writing.fileno(), writing.fileno()]
                calls.append((server.start(call, files), stdout))
        return [
            (_answer_of(connection), stdout.read_text(errors="replace"))
            for connection, stdout in calls
        ]


def _answer_of(connection: socket.socket) -> int:
    """The exit status of a command."""
    with connection:
        answered = select.select([connection], [], [], HANGS)[0]
        answer = connection.recv(99) if answered else b""
    assert answer, "the server has ended, or a command hangs"
    return int(answer)


def run_program(*command: object, status: int = 0, cwd: Path = ROOT, **more: str) -> str:
    """All that a newly started program prints, where a fork would not show the same."""
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    how |= {"env": os.environ | ENVIRONMENT | more, "timeout": HANGS}
    done = subprocess.run([*map(str, command)], cwd=cwd, **how)
    assert done.returncode == status, done.stdout[-6000:]
    return done.stdout


def stand_ins() -> Path:
    """Folder of programs that the server runs; its ``python`` runs ``-m fairseq_kerbs.cli``."""
    return _server().folder


def standing_in() -> dict[str, str]:
    """Environment in which a shell, and all that it starts, runs :func:`stand_ins`."""
    path = f"{stand_ins()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path}
    environment[STANDING_IN] = str(stand_ins() / "python")
    return environment


def make_checkout(folder: Path) -> Path:
    """A checkout without tests, whose ``.venv`` is the environment of :func:`stand_ins`."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("configs", "fairseq_kerbs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(stand_ins().parent)
    return folder


class _Server:
    """The server. It ends when this process does, and its standard input is closed."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = os.environ | ENVIRONMENT
        self.folder = Path(tempfile.mkdtemp(prefix="kerbs-")) / "bin"
        self.address = str(self.folder.parent / "socket")
        how: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        command = [sys.executable, "-m", "tests.helpers.commands", self.address]
        self.process = subprocess.Popen(command, env=self.environment, **how)
        atexit.register(self._end)
        self.folder.mkdir()
        # a python that is started as the one in this folder has the packages of ours
        ours = Path(sys.prefix) / "pyvenv.cfg"
        base = f"home = {sys.base_prefix}/bin\n"  # of tests without a virtual environment
        settings = ours.read_text() if ours.exists() else base
        (self.folder.parent / "pyvenv.cfg").write_text(settings)
        (self.folder.parent / "lib").symlink_to(Path(sys.prefix) / "lib")
        for name in STAND_INS:
            program = self.folder / name
            program.write_text(_STAND_IN.format(python=sys.executable, address=self.address))
            program.chmod(0o755)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def start(self, call: dict[str, Any], files: list[int]) -> socket.socket:
        """Start a command with three open files; the connection will have its exit status."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        request = json.dumps(call, default=str).encode() + b"\n"
        sent = socket.send_fds(connection, [request], files)
        connection.sendall(request[sent:])
        return connection

    def _end(self) -> None:
        self.process.communicate()
        shutil.rmtree(self.folder.parent)


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve(address: str) -> None:
    """Run the commands that connections ask for, until standard input is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    answers = os.fdopen(os.dup(1), "w")
    ending = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    for module in IMPORTED:
        importlib.import_module(module)
    for module in IMPORTED_IF_INSTALLED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)
    _parse_flags()
    gc.freeze()  # a collection would write to, and so copy, all that a fork shares with us
    print("ready", file=answers, flush=True)
    while True:
        ready = select.select([listening.fileno(), ending], [], [])[0]
        if ending in ready:
            return
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(ending)
            answers.close()
            _attend(connection)
        connection.close()
        while _reaped():
            pass


def _reaped() -> bool:
    """Take the exit status of a child that has ended, if there is one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _attend(connection: socket.socket) -> None:
    """Run the command of a connection and answer with its exit status. It ends with its client."""
    request, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not request.endswith(b"\n"):
        request += connection.recv(1 << 16)
    command = os.fork()
    if command == 0:
        connection.close()
        _become(json.loads(request), files)
    ended = 0
    status = 0
    while not ended:
        ended, status = os.waitpid(command, os.WNOHANG)
        if not ended and select.select([connection], [], [], 0.01)[0]:
            os.kill(command, signal.SIGTERM)
            ended, status = os.waitpid(command, 0)
    with suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _parse_flags() -> None:
    """As every command of fairseq does: Hydra's parser is slow until it has seen such flags."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from hydra.core.global_hydra import GlobalHydra

    parser = options.get_training_parser()
    convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["", "--arch", "lstm"]))
    GlobalHydra.instance().clear()


def _become(call: dict[str, Any], files: list[int]) -> None:
    """Be the program, to its exit."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # end with the server
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # the server's own know whether its files can be wound back
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=sys.stdout.encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=sys.stderr.encoding, closefd=False)
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.argv = [call["program"], *map(str, call["arguments"])]
    if call["program"] == "fairseq-kerbs" and STANDING_IN in os.environ:
        sys.executable = os.environ[STANDING_IN]  # beside which it finds fairseq's programs
    for target, argument in call.get("prepare", {}).items():
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(argument)
    (script,) = entry_points(group="console_scripts", name=call["program"])
    try:
        status = script.load()()
    except SystemExit as ending:
        status = ending.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)  # to take all modules apart would take longer than most commands


if __name__ == "__main__":
    _serve(sys.argv[1])
