"""Files of results/ belong to pages, and figures show them; Lemmas 4.1 and 4.2 on small scale."""

import json
import re
from pathlib import Path

import pytest
import torch

from scripts.experiments import figures, lemmas
from scripts.experiments.figures import raw_files, read
from scripts.experiments.lemmas import Training, learn_senses, learn_theta
from tests.helpers.cli import Capsys

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
FIGURES = RESULTS / "figures"
FOLDERS = [ROOT / name for name in ("configs", "fairseq_kerbs", "results", "scripts", "tests")]
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


def test_figures_are_small_and_drawn_from_what_lies_here_now(tmp_path: Path) -> None:
    figures.main([str(tmp_path)])
    drawn = json.loads((FIGURES / "values.json").read_text())
    assert json.loads((tmp_path / "values.json").read_text()) == drawn
    names = {"training.svg", "price.svg", "lemma41.svg", "outliers.svg", "values.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert {file.name for file in FIGURES.iterdir()} == names
    assert all(file.stat().st_size < 150_000 for file in FIGURES.iterdir())
    page = (RESULTS / "README.md").read_text() + (RESULTS / "clusters/README.md").read_text()
    for shown in drawn["training"].values():
        assert f"{shown['loss'][-1]:.3f} ± " in page
        assert f"{shown['bleu']:.2f} ± {shown['deviation']:.2f}" in page
    for row in read("clusters/price.tsv").splitlines()[1:]:
        name, time, file = row.split("\t")
        shown, line = drawn["price"][name], f"{drawn['price'][name]['v']:.3f} ["
        assert shown["time"] == float(time)
        assert line in read(f"clusters/{file}")
        assert line in page.replace("**", "")
        assert f"| {time} |" in page
    lemma = read("lemmas/lemmas.txt").splitlines()
    for policy, shown in drawn["lemma41"].items():
        row = next(line for line in lemma if line.split()[:1] == [policy])
        assert [float(x) for x in row.split()[2:6]] == pytest.approx(shown["senses"], abs=0.005)


def test_words_end_with_as_many_senses_as_clusters() -> None:
    """Lemma 4.1: 1 to 4 clusters a word; by chance every word has 2.5 senses."""
    training = Training(dim=8, steps=300, lr=0.05)
    found = learn_senses("clusters", training, words_each=2)
    fixed = learn_senses("none", training, words_each=2)
    assert found["exact"] == 1.0 > fixed["exact"]
    assert [found[f"senses_{k}"] for k in (1, 2, 3, 4)] == pytest.approx([1, 2, 3, 4], abs=0.51)
    assert found["correlation"] > 0.8 > fixed["correlation"] + 0.2
    assert found["own"] >= 0.9 > fixed["own"]
    assert found["used"] >= 0.9 > fixed["used"]
    assert found["loss"] < fixed["loss"]
    assert fixed["moves"] == 0 < found["moves"]


def test_theta_grows_with_the_width_of_the_cluster() -> None:
    """Lemma 4.2, in the sign of Eq. 9: from well below 0 to above it."""
    found = learn_theta([0.6, 0.8, 1.0, 1.3], Training(steps=300, lr=0.06), words_each=5)
    theta = [one["theta"] for one in found]
    assert theta == sorted(theta)
    assert theta[0] < -1.0
    assert theta[-1] - theta[0] > 2.0
    assert all(one["cosine"] > 0.95 for one in found)
    certain = {"width": 0.1, "theta": 9.0, "unsure": 0.0}
    assert lemmas.theta_correlation([certain, *found]) == pytest.approx(0.0)
    assert lemmas.theta_correlation([certain, *found], lemmas.UNSURE) == pytest.approx(1.0)


def test_directions_are_spread() -> None:
    far = lemmas.spread_directions(12, 6, torch.Generator().manual_seed(0))
    assert (far @ far.t() - torch.eye(12)).max() < 0.61


def test_the_script_prints_tables_and_writes_a_file(tmp_path: Path, capsys: Capsys) -> None:
    lemmas.main(["--steps", "3", "--seeds", "0", "-o", str(tmp_path / "r.json")])
    assert "released" in capsys.readouterr().out
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    # of a revision that also had --new-sense split
    recorded = [
        row
        for row in json.loads(read("lemmas/lemmas.json"))["rows"]
        if row["seed"] == 0 and row.pop("new_sense", "keep") == "keep"
    ]
    assert [list(row) for row in rows] == [list(row) for row in recorded]
    assert rows[0]["loss"] == pytest.approx(learn_senses("none", Training(steps=3))["loss"])
    assert (rows[-1]["lemma"], rows[-1]["width"]) == ("4.2", 1.4)
