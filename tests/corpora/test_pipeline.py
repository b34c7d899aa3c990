"""Steps are repeated exactly when inputs, settings or outputs have changed; folders are safe."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentError, ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.corpora.pipeline import NAME, Manifest, whole_number, working_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL


def quiet(message: str) -> None:
    pass


def test_an_interruption_names_its_step(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.run()
    manifest = Manifest(work.folder, quiet)

    def interrupt() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^'move'$"):
        manifest.step("move", interrupt, {}, [work.output])
    work.run()
    assert work.runs == 1  # what was done before stays done


class Work:
    """A folder with one input, and a step that copies it and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dest"
        self.folder.mkdir()
        self.input = folder / "input"
        self.input.write_text("text")
        self.output = self.folder / "output"
        self.product = self.folder / "bin"
        self.runs = 0

    def run(self, **settings: Any) -> dict[str, Any]:
        manifest = Manifest(self.folder, quiet)
        inputs = {"input": self.input}
        return dict(manifest.step("copy", self._copy, inputs, [self.output], **settings))

    def _copy(self) -> dict[str, Any]:
        self.runs += 1
        self.output.write_text(self.input.read_text())
        return {"length": len(self.input.read_text())}


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_unchanged_step_is_skipped_and_its_figures_kept(work: Work) -> None:
    assert work.run(a=1) == {"length": 4}
    assert work.run(a=1) == {"length": 4}
    assert work.runs == 1


def test_moved_folder_is_still_done(work: Work, tmp_path: Path) -> None:
    work.run(a=1)
    work.folder = work.folder.rename(tmp_path / "moved")
    work.output = work.folder / "output"
    work.run(a=1)
    assert work.runs == 1


def test_other_settings_input_or_output_repeat_it(work: Work) -> None:
    work.run(a=1)
    work.run(a=2)
    assert work.runs == 2
    work.input.write_text("other")
    assert work.run(a=2) == {"length": 5}
    assert work.runs == 3
    work.output.write_text("tampered with")
    work.run(a=2)
    assert work.runs == 4
    work.output.unlink()
    work.run(a=2)
    assert work.runs == 5
    assert work.output.read_text() == "other"


def test_product_goes_as_soon_as_a_step_is_due(work: Work) -> None:
    work.run(a=1)
    work.product.mkdir()
    work.run(a=1)
    assert work.product.exists()
    work.run(a=2)
    assert not work.product.exists()


def test_failed_step_is_not_recorded(work: Work) -> None:
    work.run(a=1)
    work.input.unlink()
    with pytest.raises(FileNotFoundError):
        work.run(a=1)
    work.input.write_text("text")
    work.run(a=1)
    assert work.runs == 3


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 99, "steps": {}}', '{"steps": {}}'])
def test_broken_manifest(work: Work, content: str) -> None:
    (work.folder / NAME).write_text(content)
    with pytest.raises(UserError, match="not a manifest of this version"):
        work.run()


def test_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(UserError, match="was not made by 'fairseq-kerbs prepare'"),
        working_folder(tmp_path, quiet),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_leftovers_of_a_killed_run_are_cleared(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"version": 1, "steps": {}}')
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / f"{PARTIAL}1-train.de").write_text("half a li")
    (tmp_path / f"{PARTIAL}1-bin").mkdir()
    (tmp_path / f"{PARTIAL}1-bin" / "dict.de.txt").write_text("half")
    with working_folder(tmp_path, quiet):
        assert not [file for file in tmp_path.rglob("*") if file.name.startswith(PARTIAL)]


def test_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from fairseq_kerbs.corpora.pipeline import working_folder\n"
        "with working_folder(Path(sys.argv[1]), str):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with (
            pytest.raises(UserError, match="another run is preparing"),
            working_folder(tmp_path, quiet),
        ):
            pass
        other.communicate("")
    with working_folder(tmp_path, quiet):
        pass


FOREIGN = [
    '{"name": "an extension", "manifest_version": 3, "version": "1.0"}',
    '{"version": 1, "steps": {}, "name": "another program\'s"}',
]


@pytest.mark.parametrize("content", FOREIGN, ids=range(len(FOREIGN)))
def test_a_folder_with_a_foreign_manifest_is_refused_untouched(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / NAME).write_text(content)
    (tmp_path / f"{PARTIAL}1-thesis").write_text("years of work")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        pytest.raises(UserError, match=r"manifest\.json is not a manifest of this version"),
        working_folder(tmp_path, quiet),
    ):
        pass
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_names_of_ours_are_cleared(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL}1-file").write_text("not ours: there is no manifest")
    with working_folder(tmp_path, quiet):
        assert (tmp_path / f"{PARTIAL}1-file").exists()
    (tmp_path / f"{PARTIAL}notes").write_text("the user's")
    with working_folder(tmp_path, quiet):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {NAME, ".lock", f"{PARTIAL}notes"}


def test_binarization_that_went_wrong_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a b\n" * 3)
    with working_folder(tmp_path / "dest", quiet) as manifest:
        flags = ["--only-source", "--trainpref", str(text), "--workers", "1"]
        with pytest.raises(UserError, match=r"wrote 3 of 4 lines of train; run again with"):
            manifest.binarize(flags, {"train": text}, {"train": 4})
        flags[2] = str(tmp_path / "nothing")
        with pytest.raises(UserError, match=r"failed with status 1; see .*preprocess\.log"):
            manifest.binarize(flags, {"train": text}, {"train": 3})
    names = {NAME, "preprocess.log", ".lock"}
    assert {file.name for file in (tmp_path / "dest").iterdir()} == names


@pytest.mark.parametrize(("text", "message"), [("0", "must be at least 1, not 0"), ("x", "'x'")])
def test_whole_numbers(text: str, message: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--merges", type=whole_number(1))
    assert parser.parse_args(["--merges", "1"]).merges == 1
    with pytest.raises(ArgumentError, match=f"--merges: .*{message}"):
        parser.parse_args(["--merges", text])
