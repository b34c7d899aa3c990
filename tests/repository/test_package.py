"""What holds for all modules of the package."""

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import fairseq_kerbs
from tests.helpers.commands import run, run_program


def test_nothing_of_fairseq_is_changed() -> None:
    """What the package imports from fairseq keeps its attributes."""
    for path in Path(fairseq_kerbs.__file__).parent.rglob("*.py"):
        assert not assigned(path.read_text(encoding="utf-8")), path
    for line in ("t.Trainer.x = 1", "setattr(t, 'x', 1)", "fairseq.utils.x = 1"):
        assert assigned(f"import fairseq.utils\nfrom fairseq import trainer as t\n{line}")


def assigned(text: str) -> bool:
    """Whether a module assigns an attribute of what it imports from fairseq."""
    imports = (n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Import, ast.ImportFrom)))
    pairs = ((getattr(node, "module", None), alias) for node in imports for alias in node.names)
    theirs = (a for module, a in pairs if re.match(r"fairseq(?!_kerbs)", module or a.name))
    names = "|".join(alias.asname or alias.name.split(".")[0] for alias in theirs)
    written = rf"^ *(setattr\(({names})\b|({names})\.[\w.]+ = )"
    return bool(names and re.search(written, text, re.MULTILINE))


def test_the_citation_has_the_version_and_the_paper() -> None:
    root = Path(fairseq_kerbs.__file__).parents[1]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fairseq_kerbs.__version__
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    released = f"## {fairseq_kerbs.__version__} ({citation['date-released']})"
    assert released in changelog.splitlines()
    assert citation["preferred-citation"]["title"] in (root / "README.md").read_text(
        encoding="utf-8"
    ).replace("{B}ayesian", "Bayesian")


FOLDER = Path(fairseq_kerbs.__file__).parent
TRAIN = (
    "--arch",
    "lstm_kerbs",
    "--hidden-size",
    6,
    "--embed-dim",
    4,
    "--criterion",
    "kerbs_cross_entropy",
    "--optimizer",
    "adam",
    "--max-tokens",
    300,
    "--max-update",
    1,
    "--no-save",
    "--cpu",
    "--num-workers",
    0,
    "--disable-validation",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("link", "my_kerbs"), ("copy", "my-kerbs"), ("copy", "models"), ("link", "lib/fairseq_kerbs")],
)
def test_the_folder_of_the_plugin_may_have_another_name(
    kind: str, name: str, tiny_work: Path, tmp_path: Path
) -> None:
    """A link or a copy, with a slash after it; the code that runs is that of the named folder."""
    named = tmp_path / name
    named.parent.mkdir(exist_ok=True)
    if kind == "link":
        named.symlink_to(FOLDER)
    else:
        shutil.copytree(FOLDER, named, ignore=shutil.ignore_patterns("__pycache__"))
    said = run(
        "fairseq-train",
        tiny_work / "bin",
        "--user-dir",
        f"{name}/",
        *TRAIN,
        cwd=tmp_path,
        prepare={"tests.helpers.plugin_place:say": ""},
    )
    assert "done training" in said
    used = Path(said.splitlines()[-1]).resolve().parent.parent
    assert used == named.resolve()


def test_two_plugins_at_a_time_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "other")
    code = "import fairseq_kerbs, other"
    said = run_program(sys.executable, "-c", code, cwd=tmp_path, status=1)
    assert said.splitlines()[-1].startswith("fairseq_kerbs: error: --user-dir ")
    assert f"fairseq_kerbs has been imported from {FOLDER}" in said
    assert "Traceback" not in said
