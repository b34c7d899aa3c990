"""Steps are repeated exactly when inputs, settings or outputs have changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.corpora.manifest import NAME, Manifest, locked_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL


class Work:
    """A folder with one input, and a step that copies it and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dest"
        self.folder.mkdir()
        self.input = folder / "input"
        self.input.write_text("text")
        self.output = self.folder / "output"
        self.product = self.folder / "product"
        self.runs = 0

    def run(self, **settings: Any) -> dict[str, Any]:
        manifest = Manifest(self.folder, self.product, report=lambda line: None)
        return manifest.step(
            "copy",
            inputs={"input": self.input},
            settings=settings,
            outputs=[self.output],
            action=self._copy,
        )

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
        locked_folder(tmp_path),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_leftovers_of_a_killed_run_are_cleared(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"version": 1, "steps": {}}')
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / f"{PARTIAL}1-train.de").write_text("half a li")
    (tmp_path / f"{PARTIAL}1-bin").mkdir()
    (tmp_path / f"{PARTIAL}1-bin" / "dict.de.txt").write_text("half")
    with locked_folder(tmp_path):
        assert not [file for file in tmp_path.rglob("*") if file.name.startswith(PARTIAL)]


def test_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from fairseq_kerbs.corpora.manifest import locked_folder\n"
        "with locked_folder(Path(sys.argv[1])):\n"
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
        with pytest.raises(UserError, match="another run is preparing"), locked_folder(tmp_path):
            pass
        other.communicate("")
    with locked_folder(tmp_path):
        pass


FOREIGN = [
    '{"name": "an extension", "manifest_version": 3, "version": "1.0"}',
    '{"version": 1, "steps": {}, "name": "another program\'s"}',
    '{"version": 1, "steps": {"filter train": {}}}',
    '{"version": 1, "steps": {"filter train": []}}',
    '{"version": 1, "steps": ["filter train"]}',
    '{"version": 1, "steps": {"a": {"inputs": {}, "settings": {}, "result": 1, "outputs": {}}}}',
    "[" * 100_000,
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
        locked_folder(tmp_path),
    ):
        pass
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_names_of_ours_are_cleared(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL}1-file").write_text("not ours: there is no manifest")
    with locked_folder(tmp_path):
        assert (tmp_path / f"{PARTIAL}1-file").exists()
    (tmp_path / NAME).write_text('{"version": 1, "steps": {}}')
    for name in (f"{PARTIAL}notes", f"{PARTIAL}1x-notes", f"{PARTIAL}1"):
        (tmp_path / name).write_text("the user's")
    with locked_folder(tmp_path):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {NAME, ".lock", f"{PARTIAL}notes", f"{PARTIAL}1x-notes", f"{PARTIAL}1"}
