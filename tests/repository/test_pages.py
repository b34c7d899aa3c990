"""Pages: what lies in results/, links that lead somewhere, and names that CONTRIBUTING has."""

import re
from pathlib import Path

import pytest

from scripts.experiments.figures import raw_files

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
FIGURES = RESULTS / "figures"
FOLDERS = [
    ROOT / name for name in ("configs", "docs", "fairseq_kerbs", "results", "scripts", "tests")
]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}


def test_a_page_has_figures_tables_and_one_archive_of_raw_files() -> None:
    for folder in filter(Path.is_dir, RESULTS.iterdir()):
        kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
        if folder == FIGURES:
            assert kinds == {".svg", ".json"}
            continue
        assert any(folder.glob("*.md"))
        assert kinds <= {".md", ".svg", ".png", ".csv", ".txt", ".xz"}, folder
        assert [path.name for path in folder.rglob("*.xz")] in ([], ["raw.tar.xz"])
        if ".xz" in kinds:
            listing = raw_files(folder.name)["LISTING.txt"].splitlines()
            names = {line.split(maxsplit=1)[1] for line in listing}
            assert names == raw_files(folder.name).keys() - {"LISTING.txt"}


def test_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 5_000_000
    assert len((RESULTS / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, member in re.findall(r"\]\(([^)\s]+)(?: \"([^\"]+)\")?\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
        if file.name == "raw.tar.xz":  # the title of the link is a file or folder in the archive
            names = raw_files(file.parent.name)
            assert any(n == member or n.startswith(member.rstrip("/") + "/") for n in names), member
            assert member


def test_contributing_names_what_there_is() -> None:
    """Files and functions that CONTRIBUTING.md names in backticks."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = [ROOT / "setup.py", *(path for folder in FOLDERS for path in folder.rglob("*.py"))]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"`([a-z_./]+\.py)`", text):
        assert any(str(path).endswith(f"/{name}") for path in files), name
    for name in re.findall(r"`([A-Za-z_]\w*)\(\)`", text):
        assert f"def {name}(" in code, name
    for name in re.findall(r"`([A-Z]\w+)`", text):
        assert re.search(rf"^(class )?{name}\b", code, re.MULTILINE), name
