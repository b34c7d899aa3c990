"""Tests mirror the code: tests/FOLDER/test_MODULE.py is of FOLDER/MODULE.py."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fairseq_kerbs"
TESTS = ROOT / "tests"

OF_NO_MODULE = {
    "compatibility": "the package beside an unmodified fairseq, in environments of their own",
    "end_to_end": "whole trainings and commands, through many modules",
    "repository": "pages and the tree of files",
}
"""Folders of tests that are of no single module."""

TESTED_ELSEWHERE = {
    "checkpoints/building.py": "checkpoints/test_reading.py",
    "cli/plot_contexts.py": "analysis/test_hugging_face.py",
    "cli/convert.py": "checkpoints/test_conversion.py",
    "cli/corpora.py": "data/test_prepare.py",
    "cli/generate.py": "end_to_end/test_main_job.py",
    "cli/gold.py": "data/test_gold.py",
    "cli/human_eval.py": "evaluation/test_human.py",
    "cli/models.py": "checkpoints/test_reading.py",
    "cli/neighbours.py": "analysis/test_neighbours.py",
    "cli/plot.py": "analysis/test_plots.py",
    "evaluation/numerics.py": "cli/test_self_check.py",
    "evaluation/ratings.py": "scripts/tables/test_reproduce.py",
    "models/recurrent.py": "models/test_base.py",
    "models/transformer.py": "models/test_base.py",
    "output_layers/mixture.py": "likelihood/test_mixture.py",
    "program_checks.py": "cli/test_program.py",
}
"""Modules without a file of tests of their own, and the file that has most of their tests."""


def module_of(test: Path) -> Path:
    """The module at the mirrored path."""
    folder = test.parent.relative_to(TESTS)
    name = test.name.removeprefix("test_")
    if folder.parts[:1] == ("scripts",):
        return ROOT / folder / name
    return PACKAGE / folder / ("__init__.py" if name == "init.py" else name)


def test_every_file_of_tests_is_of_a_module() -> None:
    strangers = {
        str(test.relative_to(TESTS))
        for test in TESTS.rglob("test_*.py")
        if test.relative_to(TESTS).parts[0] not in OF_NO_MODULE and not module_of(test).exists()
    }
    assert strangers == set()


def test_every_module_has_a_file_of_tests() -> None:
    mirrored = {module_of(test) for test in TESTS.rglob("test_*.py")}
    modules = {path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    missing = {str(path.relative_to(PACKAGE)) for path in modules - mirrored}
    assert missing == TESTED_ELSEWHERE.keys()
    assert all((TESTS / file).exists() for file in TESTED_ELSEWHERE.values())
