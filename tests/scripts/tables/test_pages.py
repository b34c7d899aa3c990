"""Tables as Markdown."""

from pathlib import Path
from statistics import fmean, stdev

import pytest
from sacrebleu.metrics.bleu import BLEU

from fairseq_kerbs.training.curve import begins_after
from fairseq_kerbs.utils.errors import UserError
from scripts.tables.figures import figures_of, write_figures
from scripts.tables.pages import write_table
from tests.helpers.cli import Patch
from tests.helpers.tables import LOG, OWN, cells_of, runs_of

for package in ("pandas", "jsonschema", "snakemake"):
    pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra tables")


TEXTS = {
    ("a", 1): ["it is a dog", "hello world"],
    ("b", 1): ["it is a dog", "hello world to you"],
    ("a", 2): ["it is", "hello world to you"],
    ("b", 2): ["is it", "you to hello world"],
}
TIMES = {
    ("a", 1): "started\n50.5 9.5\n",
    ("b", 1): "started\n80 10\n",
    ("a", 2): "started\nstarted\n10 1\n",  # a part was killed, so it is not measured
    ("b", 2): "started\n20 0\nstarted\n60 10\n",
}


def test_the_loss_is_that_of_the_model_with_senses(tmp_path: Path, monkeypatch: Patch) -> None:
    """Not of the softmax that it was, although that may be lower; also if it was resumed."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN.replace("bleu4", "valid_loss"))
    run = runs_of(str(tmp_path / "own.yaml"))[0]
    Path(run.folder).mkdir(parents=True)
    line = f"{begins_after(20)}\n"
    for log, loss in (
        (LOG, 3.165),
        (LOG + line + LOG.replace("3.165", "3.5"), 3.2),
        (LOG + line + LOG.replace("3.2 ", "3.0 ") + line + LOG, 3.0),
    ):
        Path(run.folder, "train.log").write_text(log)
        assert figures_of(run)["value"] == figures_of(run)["valid_loss"] == loss


def test_means_deviations_and_bootstrap(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    paper = "metric: bleu1\n    title: Words\n    paper: {a: 25, b: 26.5}"
    content = OWN.replace("metric: bleu4", paper) + "      seeds: [1, 2]\n"
    content += "      flags: {b: {lr: 1}}\n  people: {metric: human, paper: {a: 1.24}}\n"
    Path("own.yaml").write_text(content)
    Path("data/toy").mkdir(parents=True)
    reference = ["it is a dog", "hello world to you"] * 20
    Path("data/toy/reference").write_text("\n".join(reference))
    runs, scores = runs_of(str(tmp_path / "own.yaml")), dict[str, list[float]]()
    for run in runs:
        Path(run.folder).mkdir(parents=True)
        Path(run.folder, "train.log").write_text(LOG)
        texts = TEXTS[run.row, run.seed] * 20
        lines = (f"H-{number}\t-1\t{text}\n" for number, text in enumerate(texts))
        Path(run.output).write_text("".join(lines))
        Path(run.folder, "processor_time.txt").write_text(TIMES[run.row, run.seed])
        score = BLEU(max_ngram_order=1).corpus_score(texts, [reference])
        scores.setdefault(run.row, []).append(score.score)
    write_figures(runs, "own.csv")
    write_table(runs, "small", "own.csv", "own.md")
    written = Path("own.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines()]
    rows = {line[0]: line[1:] for line in cells if len(line) == 12}
    means = {row: fmean(values) for row, values in scores.items()}
    ours = {row: f"{means[row]:.2f} ± {stdev(scores[row]):.2f}" for row in "ab"}
    trained = ["3.165 ± 0.000", "1,234,567", "2.5"]  # 60 and 90 seconds
    # time ÷ A by the runs that were measured, and 6 of 8 tokens with both seeds
    assert rows["A"] == [ours["a"], "2", "25", "", "", "", *trained, "1.00", "0.75 ± 0.00"]
    gain, p = f"{means['b'] - means['a']:+.2f}", rows["B"][5].split(", ")
    assert rows["B"] == [
        ours["b"],
        "2",
        "26.5",
        gain,
        "+1.50",
        ", ".join(p),
        *trained,
        "1.50",
        "0.88 ± 0.18",
    ]
    assert (0 < float(p[0]) < 0.05, p[1]) == (True, "1.000")  # of seed 2, all resamples are equal
    assert "Nobody has scored answers" in written
    assert "|order:1`" in written
    Path(runs[0].output).write_text("H-0\t-1\tit is\n")
    with pytest.raises(UserError, match="has 1 lines"):
        write_figures(runs, "own.csv")


def test_scores_of_people_are_the_human_row_of_table_1(
    scored: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Systems have the names or titles of rows, in any case; MoS was not scored."""
    monkeypatch.chdir(tmp_path)
    runs = [run for run in runs_of("1") if run.column == "mt"]
    for run in runs:
        Path(run.folder).mkdir(parents=True)
        Path(run.folder, "train.log").write_text(LOG)
        Path(run.output).write_text("H-0\t-1\tit is a dog\n")
    Path("data/multi30k").mkdir(parents=True)
    Path("data/multi30k/reference").write_text("it is a dog\n")
    write_figures(runs, "1.csv")
    write_table(runs, "small", "1.csv", "1.md", str(scored))
    written = Path("1.md").read_text().partition("judged by people")[2]
    assert cells_of(written, "softmax") == ["1.00", "0.00", "8", "1.24", "", "", ""]
    assert cells_of(written, "MoS") == ["", "", "", "1.04", "", "-0.20", ""]
    from scipy.stats import ttest_1samp

    p = ttest_1samp([2, 0, 0, 2], 0, alternative="greater").pvalue
    assert cells_of(written, "KerBS") == ["1.50", "0.53", "8", "1.4", "+0.50", "+0.16", f"{p:.4f}"]
    assert "- 4 items, 2 of 2 raters; Fleiss' kappa 1.000, Krippendorff's alpha" in written
    assert "- p: one-tailed paired t-test over items, system better than SOFTMAX." in written
    assert "- Without scores: MoS." in written
    assert "--table 1 --scale small --human scores.json`" in written
    write_table(runs, "small", "1.csv", "1.md")
    assert cells_of(Path("1.md").read_text(), "KerBS") == ["", "", "", "1.4", "", "+0.16", ""]
