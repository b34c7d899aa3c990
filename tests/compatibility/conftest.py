"""Environments with an untouched fairseq on older Pythons and torches, and data for all of them.

An environment takes minutes and gigabytes, so it stays in the cache folder:
$XDG_CACHE_HOME/fairseq_kerbs/compatibility, by default in ~/.cache.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

PYTHONS, TORCHES = ("3.9", "3.10"), ("1.12.1", "1.13.1", "2.1.2", "2.5.1")
# fairseq uses np.int, which numpy 1.24 took away
FAIRSEQ = ("fairseq==0.12.2", "numpy<1.24")
# for convert, which counts senses by source words
ANALYSIS = ("click>=8.1", "pandas>=2.2", "scikit-learn>=1.4", "scipy", "snowballstemmer")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
TINY = (
    "--optimizer",
    "adam",
    "--lr",
    "3e-3",
    "--clip-norm",
    5.0,
    "--max-tokens",
    2000,
    "--seed",
    1,
    "--num-workers",
    0,
    "--log-format",
    "simple",
    "--log-interval",
    1,
    "--no-epoch-checkpoints",
    "--criterion",
    "kerbs_cross_entropy",
)
# with these, and not with AVX-512, two versions of torch round alike
PLAIN = {
    "OMP_NUM_THREADS": "1",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}


class Environment(NamedTuple):
    """A Python with fairseq, in which commands run as a user's do."""

    name: str
    programs: Path
    folder: Path

    def run(self, program: str, *arguments: object, stdin: str = "", succeeds: bool = True) -> str:
        """All that a program prints; fairseq's get ``--user-dir``."""
        plugin = ("--user-dir", PLUGIN_FOLDER) if program.startswith("fairseq-") else ()
        variables = {name: os.environ[name] for name in ("HOME", "PATH")} | PLAIN
        command = [self.programs / program, *arguments, *plugin]
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=variables,
            input=stdin,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert (done.returncode == 0) == succeeds, done.stdout[-6000:]
        return done.stdout

    def kerbs(self, *arguments: object, succeeds: bool = True) -> str:
        """All that ``fairseq-kerbs`` of this checkout prints, which nothing has installed."""
        code = f"import sys; sys.path.insert(0, {str(PLUGIN_FOLDER.parent)!r}); "
        code += "from fairseq_kerbs.cli import main; sys.exit(main())"
        return self.run("python", "-c", code, *arguments, succeeds=succeeds)

    def train(self, save_dir: Path | str, *arguments: object, data: object = "bin") -> list[float]:
        """The loss of each update of fairseq-train."""
        log = self.run("fairseq-train", data, *TINY, "--save-dir", save_dir, *arguments)
        lines = [line for line in log.splitlines() if "train_inner" in line]
        return [float(line.split(" loss=")[1].split(",")[0]) for line in lines]

    def translate(self, checkpoint: Path, *arguments: object) -> list[str]:
        """The best translations of the test set, in its order."""
        flags = (
            "--path",
            checkpoint,
            "--beam",
            5,
            "--batch-size",
            100,
            "--remove-bpe",
            "--max-len-b",
            30,
        )
        output = self.run("fairseq-generate", "bin", *flags, *arguments)
        found = (line.split("\t") for line in output.splitlines() if line.startswith("H-"))
        return [text for _, text in sorted((int(name[2:]), text) for name, _, text in found)]


def _python(version: str) -> str | None:
    """A program of that Python which runs: on PATH, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for program in (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")):
        check = [str(program), "-c", "import ensurepip, venv"]
        if program and not subprocess.run(check, capture_output=True).returncode:
            return str(program)
    return None


def _make(folder: Path, python: str, torch: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    # pip 24.1 refuses the metadata of the omegaconf that fairseq pins
    for wanted in (["pip<24.1"], [f"torch=={torch}", *FAIRSEQ, *ANALYSIS]):
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *wanted]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    (folder / "complete").touch()


@pytest.fixture(scope="session", params=[(p, t) for p in PYTHONS for t in TORCHES], ids="-".join)
def stock(request: pytest.FixtureRequest, ours: Environment, tmp_path_factory: Any) -> Environment:
    """An untouched fairseq 0.12.2 from the registry."""
    version, torch = request.param
    name = f"py{version}-torch{torch}"
    folder = CACHE / "fairseq_kerbs" / "compatibility" / name
    if not (folder / "complete").is_file():
        python = _python(version)
        if python is None:
            pytest.skip(f"there is no Python {version}")
        _make(folder, python, torch)
    work = tmp_path_factory.mktemp(name)
    for data in ("bin", "lm"):
        (work / data).symlink_to((ours.folder / data).resolve())
    return Environment(name, folder / "bin", work)


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The fairseq of this Python, with the corpus of the quick start prepared in its folder."""
    here = Environment("ours", Path(sys.executable).parent, tmp_path_factory.mktemp("ours"))
    here.kerbs("toy", "text")
    pairs = [f"--{part}=text/{part}" for part in ("train", "valid", "test")]
    here.kerbs(
        "prepare",
        *pairs,
        "--source-lang",
        "de",
        "--target-lang",
        "en",
        "--merges",
        2000,
        "--dest",
        "data",
    )
    (here.folder / "bin").symlink_to("data/bin")
    texts = [f"--{part}pref=data/bpe/{part}.en" for part in ("train", "valid")]
    here.run("fairseq-preprocess", "--only-source", *texts, "--destdir", "lm")
    return here
