"""Mean, deviation and bootstrap against hand-worked figures, scipy and a plain bootstrap."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
import scipy.stats
from sacrebleu.metrics.bleu import BLEU

from fairseq_kerbs.evaluation import bleu
from fairseq_kerbs.tables.report import summarize
from fairseq_kerbs.tables.results import bleu_figures, holm, perplexity_figures
from fairseq_kerbs.utils.errors import UserError


def test_mean_and_deviation() -> None:
    mean, deviation = summarize([1.0, None, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    # ((4/3)² + (1/3)² + (5/3)²) / 2 = 42/18
    assert deviation == pytest.approx(math.sqrt(7 / 3))
    values = Random(1).choices([26.1, 27.4, 27.9, 25.0], k=9)
    assert summarize(values)[1] == pytest.approx(scipy.stats.tstd(values))
    assert summarize([]) == summarize([None]) == (None, None)
    assert summarize([3.5]) == (3.5, None)
    assert summarize([3.5, math.inf])[0] == math.inf


def test_holm_by_hand() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; 0.04 is raised to the 0.06 before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.4, 0.5]) == [1.0, 1.0, 1.0]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([0.3]) == [0.3]
    assert holm([]) == []


def texts(seed: int, errors: float) -> tuple[list[str], list[str]]:
    """References, and hypotheses with a share of wrong words."""
    random = Random(seed)
    words = [f"w{number}" for number in range(50)]
    reference = [random.choices(words, k=random.randint(5, 15)) for _ in range(60)]
    random = Random(seed + round(1000 * errors))
    hypotheses = [
        [random.choice(words) if random.random() < errors else word for word in line]
        for line in reference
    ]
    return [" ".join(line) for line in reference], [" ".join(line) for line in hypotheses]


def plain_bootstrap(
    system: list[str], base: list[str], reference: list[str], order: int, samples: int
) -> float:
    """As Koehn (2004), with sacreBLEU's centred, two-sided p; whole corpora are scored anew."""
    metric = BLEU(max_ngram_order=order, trg_lang="en")

    def score(hypotheses: list[str], chosen: list[int]) -> float:
        lines = [reference[index] for index in chosen]
        return float(metric.corpus_score([hypotheses[i] for i in chosen], [lines]).score)

    everything = list(range(len(reference)))
    observed = abs(score(system, everything) - score(base, everything))
    draws = np.random.default_rng(12345).choice(len(reference), size=(samples, len(reference)))
    differences = [abs(score(system, list(d)) - score(base, list(d))) for d in draws]
    centred = np.array(differences) - np.mean(differences)
    return float((np.sum(centred > observed) + 1) / (samples + 1))


def paired_bootstrap(
    system: list[str], base: list[str], reference: list[str], *, order: int = 4, samples: int
) -> float | None:
    metrics = {"BLEU": bleu.bleu_metric(order, language="en")}
    _, results = bleu.paired_bootstrap([base, system], [reference], metrics, samples)
    return results["BLEU"][1].p_value


@pytest.mark.parametrize(("errors", "order"), [((0.2, 0.25), 4), ((0.3, 0.31), 1)])
def test_bootstrap_is_the_plain_one(errors: tuple[float, float], order: int) -> None:
    reference, base = texts(1, errors[0])
    _, system = texts(1, errors[1])
    expected = plain_bootstrap(system, base, reference, order, samples=100)
    found = paired_bootstrap(system, base, reference, order=order, samples=100)
    assert found == pytest.approx(expected)


def test_bootstrap_tells_a_clear_difference_from_none() -> None:
    reference, good = texts(1, 0.1)
    _, bad = texts(1, 0.6)
    assert paired_bootstrap(good, bad, reference, samples=200) == pytest.approx(1 / 201)
    _, other = texts(1, 0.101)
    assert other != good
    assert (paired_bootstrap(good, other, reference, samples=200) or 0) > 0.05
    assert paired_bootstrap(good, good, reference, samples=200) == 1.0  # sacreBLEU: 1 / 201


def test_bleu_figures_by_hand() -> None:
    # 4 of 5 cased words match, 5 of 5 lowercased; the hypothesis has 5 words, the reference 6.
    figures = bleu_figures(
        ["The cat sat on mats"], ["the cat sat on mats ."], order=1, language="en"
    )
    penalty = math.exp(1 - 6 / 5)
    assert figures["value"] == pytest.approx(100 * 4 / 5 * penalty)
    assert figures["lowercased_value"] == pytest.approx(100 * penalty)
    assert figures["signature"].endswith("|order:1")
    assert "case:mixed" in figures["signature"]
    assert "case:lc" in figures["lowercased_signature"]
    four = bleu_figures(["a b c d e"], ["a b c d e"], order=4, language="en")
    assert four["value"] == pytest.approx(100)
    with pytest.raises(UserError, match="--hypotheses has 1 lines but --reference has 2"):
        bleu_figures(["a"], ["a", "b"], order=1, language="en")


def test_perplexity_is_of_the_last_line(tmp_path: Path) -> None:
    line = "INFO | fairseq_cli.eval_lm | Loss (base 2): {}, Perplexity: {}\n"
    log = tmp_path / "evaluate.log"
    log.write_text(line.format("8.1", "274.37") + "# attempt 2\n" + line.format("7.0", "128.00"))
    assert perplexity_figures(log)["value"] == 128.0
    log.write_text(line.format("inf", "inf"))
    assert perplexity_figures(log)["value"] == math.inf
    log.write_text("nothing")
    with pytest.raises(UserError, match="log has no line with a perplexity"):
        perplexity_figures(log)
