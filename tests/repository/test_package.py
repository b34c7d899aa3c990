"""What holds for all modules of the package."""

import ast
import re
from pathlib import Path

import yaml

import fairseq_kerbs


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
