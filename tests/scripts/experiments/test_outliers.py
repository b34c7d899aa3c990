"""Section 4.1.2: σ of a Gaussian and θ of the kernel, with outliers."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from fairseq_kerbs.kernels import KerbsKernel, apply_kernel, kerbs_gain
from scripts.experiments import outliers as simulation
from scripts.experiments.figures import read
from scripts.experiments.outliers import (
    SHARES,
    WIDTHS,
    Contexts,
    Outliers,
    draw_contexts,
    draw_limit,
    expected_sigma,
    fit_sigma,
    fit_theta,
    logits,
)
from tests.helpers.cli import Capsys

LEMMAS = Path(__file__).resolve().parents[3] / "results/lemmas"
PLACES = ("center", "origin")


def eq9(contexts: Contexts, theta: Tensor, norm: float) -> Tensor:
    """The kernel as it is printed, [n, V]."""
    by_word = theta[contexts.group]
    a = -by_word / (2 * (torch.exp(-by_word) + by_word - 1))
    cosine = contexts.products / contexts.norm
    return contexts.norm * norm * (a * torch.exp(-by_word * cosine) - a)


def test_the_closed_form_is_the_exact_expectation() -> None:
    """Moments by integration: of each of 48 coordinates, and of the normal distribution."""
    dim, inner, spread, share = 48, 12, mpmath.mpf("0.25"), mpmath.mpf("0.05")
    uniform = mpmath.quad(lambda x: x**2, [-0.5, 0.5])
    density = mpmath.npdf
    normal = mpmath.quad(lambda x: x**2 * density(x, 0, spread), [-4, -1, 0, 1, 4])
    expected = mpmath.sqrt((share * dim * uniform + (1 - share) * inner * normal) / dim)
    width = float(spread) * math.sqrt(inner)
    found = expected_sigma(dim, width, Outliers(0.05))
    assert found == pytest.approx(float(expected), rel=1e-9)
    # about the origin: every coordinate of the center, of squared length 1 in all, is added
    moved = mpmath.quad(lambda x: (x - mpmath.sqrt(1 / mpmath.mpf(dim))) ** 2, [-0.5, 0.5])
    expected = mpmath.sqrt((share * dim * moved + (1 - share) * inner * normal) / dim)
    found = expected_sigma(dim, width, Outliers(0.05, "origin"))
    assert found == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("share", "limit"), [(0.01, 0.028868), (0.05, 0.064550), (0.2, 0.129099)])
def test_sigma_tends_to_a_limit_without_the_width(share: float, limit: float, place: str) -> None:
    outliers = Outliers(share, place)
    assert expected_sigma(math.inf, 0.6, outliers) == pytest.approx(limit, abs=1e-6)
    errors = [expected_sigma(d, 1.2, outliers) - limit for d in (1e2, 1e4, 1e6, 1e8)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(0.0, abs=1e-6)
    # without outliers the width remains in σ, though σ tends to 0
    clean = [expected_sigma(1e6, width, Outliers(0.0)) for width in (0.6, 1.2)]
    assert clean == pytest.approx([0.6e-3, 1.2e-3])


def test_sigma_by_a_simulation_of_its_own() -> None:
    """Independent of the script: the subspace is that of the first coordinates."""
    rng = np.random.default_rng(0)
    dim, count, share, width = 100, 20_000, 0.2, 0.9
    x = np.zeros((count, dim))
    x[:, :12] = rng.normal(0.0, width / math.sqrt(12), (count, 12))
    outlier = rng.random(count) < share
    x[outlier] = rng.uniform(-0.5, 0.5, (int(outlier.sum()), dim))
    found = math.sqrt(float((x**2).sum()) / (count * dim))
    assert found == pytest.approx(expected_sigma(dim, width, Outliers(share)), rel=0.01)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_sigma_of_the_script_is_the_closed_form(share: float, place: str) -> None:
    dim, outliers = 256, Outliers(share, place)
    contexts = draw_contexts(dim, outliers, 200, seed=3)
    for index, width in enumerate(WIDTHS):
        own = contexts.group[contexts.word] == index
        found = float(fit_sigma(contexts.square[own], dim))
        assert found == pytest.approx(expected_sigma(dim, width, outliers), rel=0.02)


def test_sigma_maximizes_equation_8() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(50, 7, generator=g, dtype=torch.float64) * 0.3
    best = fit_sigma(x.square().sum(1), 7)

    def likelihood(sigma: Tensor) -> Tensor:
        return Normal(0.0, sigma).log_prob(x).sum()

    sigma = best.clone().requires_grad_()
    likelihood(sigma).backward()
    assert sigma.grad is not None
    assert float(sigma.grad) == pytest.approx(0.0, abs=1e-9)
    assert likelihood(best) > likelihood(best * 1.01)
    assert likelihood(best) > likelihood(best * 0.99)


def test_the_fit_recovers_a_known_theta() -> None:
    """Words are drawn from Eq. 5 with the kernel as it is printed."""
    known, norm = torch.tensor([-3.0, -0.5, 1.0], dtype=torch.float64), 8.0
    contexts = draw_contexts(32, Outliers(0.1), 400, seed=0)
    probabilities = torch.softmax(eq9(contexts, known, norm), dim=1)
    g = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(probabilities, 1, generator=g).squeeze(1)
    theta, found_norm = fit_theta(replace(contexts, word=drawn))
    assert theta.tolist() == pytest.approx(known.tolist(), abs=0.4)
    assert found_norm == pytest.approx(norm, rel=0.05)


@pytest.mark.parametrize("place", PLACES)
def test_theta_has_a_limit_that_still_shows_the_width(place: str) -> None:
    """σ of the narrow and of the wide words differ by 3 % where θ has kept its order."""
    outliers = Outliers(0.2, place)
    contexts = draw_contexts(2048, outliers, 200, seed=0)
    theta, norm = fit_theta(contexts)
    limit, limit_norm = fit_theta(draw_limit(outliers, 200, seed=0))
    assert theta.tolist() == pytest.approx(limit.tolist(), abs=0.6)
    assert norm == pytest.approx(limit_norm, rel=0.05)
    assert theta.tolist() == sorted(theta.tolist())
    assert limit.tolist() == sorted(limit.tolist())
    ratio = expected_sigma(2048, 1.2, outliers) / expected_sigma(2048, 0.6, outliers)
    assert 1.0 < ratio < 1.03


def test_theta_moves_with_outliers_and_with_the_dimension() -> None:
    """What the page says against the paper: about the center θ of narrow words rises with both."""
    narrow = []
    for dim, share in ((16, 0.0), (16, 0.05), (1024, 0.05), (1024, 0.2)):
        theta, _ = fit_theta(draw_contexts(dim, Outliers(share), 200, seed=0))
        narrow.append(float(theta[0]))
    assert narrow == sorted(narrow)
    assert narrow[0] < -5.0
    assert narrow[-1] > -1.0


def test_the_limit_of_the_kernel_is_its_slope_at_0() -> None:
    """K → g(θ) h·w as cos(h, w) → 0 with h·w fixed."""
    theta = torch.tensor([-3.0, 0.5, 2.0], dtype=torch.float64)
    contexts = draw_limit(Outliers(0.2, "origin"), 100, seed=0)
    norm = torch.tensor(7.0, dtype=torch.float64)
    found = logits(contexts, theta, norm)
    far = contexts.norm.squeeze(1) == simulation.INFINITE
    assert int(far.sum()) == 20 * len(contexts.group)
    gain, _ = kerbs_gain(theta[contexts.group])
    torch.testing.assert_close(found[far], (7.0 * gain * contexts.products)[far])
    torch.testing.assert_close(found[~far], eq9(contexts, theta, 7.0)[~far])
    covariance = contexts.products[far].T.cov()
    centers = simulation._clusters(torch.Generator().manual_seed(0))[0]
    torch.testing.assert_close(covariance, centers @ centers.T / 12, rtol=0.0, atol=0.03)


def test_an_outliers_pull_on_theta_does_not_grow_with_the_dimension() -> None:
    """∂K/∂θ of outliers about the origin, whose squared distance to the center grows 64 times."""
    pulls, squares = [], []
    for dim in (64, 4096):
        contexts = draw_contexts(dim, Outliers(1.0, "origin"), 100, seed=0)
        theta = torch.full_like(contexts.products, -2.0).requires_grad_()
        value = apply_kernel(
            KerbsKernel(),
            contexts.products,
            contexts.norm,
            torch.ones((), dtype=torch.float64),
            theta,
        )
        (pull,) = torch.autograd.grad(value.sum(), theta)
        pulls.append(float(pull.abs().mean()))
        squares.append(float(contexts.square.mean()))
    assert pulls[1] == pytest.approx(pulls[0], rel=0.1)
    assert squares[1] / squares[0] > 50


def test_a_fit_that_fails_is_an_error() -> None:
    contexts = draw_contexts(16, Outliers(0.0), 10, seed=0)
    broken = replace(contexts, products=contexts.products * math.nan)
    with pytest.raises(RuntimeError, match="did not converge"):
        fit_theta(broken)


def test_the_command_prints_a_table_and_writes_a_file(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "outliers.json"
    simulation.main(["--dims", "16", "--seeds", "0", "--contexts", "100", "-o", str(file)])
    assert re.search(
        r"^ *origin +0\.20 +inf +1\.2 +0\.1291 ", capsys.readouterr().out, re.MULTILINE
    )
    written = json.loads(file.read_text())
    recorded = json.loads(read("lemmas/outliers.json"))
    assert list(written["rows"][0]) == list(recorded["rows"][0])
    cases = 1 + len(PLACES) * (len(SHARES) - 1)
    assert len(written["rows"]) == cases * 2 * len(WIDTHS)
    with pytest.raises(SystemExit):
        simulation.main(["--dims", "8"])
    assert "must be at least 12, not 8" in capsys.readouterr().err


def test_the_recorded_values_come_out_again() -> None:
    recorded = json.loads(read("lemmas/outliers.json"))
    rows = [row for row in recorded["rows"] if (row["seed"], row["dim"]) == (0, 16)]
    for share, place in ((0.0, "none"), (0.05, "center"), (0.2, "origin")):
        found = simulation.fit(16, Outliers(share, place), recorded["settings"]["contexts"], 0)
        known = [row for row in rows if (row["alpha"], row["place"]) == (share, place)]
        for new, old in zip(found, known, strict=True):
            assert new["sigma"] == pytest.approx(old["sigma"], rel=1e-6)
            assert new["theta"] == pytest.approx(old["theta"], abs=0.01)


def test_the_page_shows_the_recorded_values() -> None:
    """Rows of the page's table: place, α, d, then σ and θ of the narrow and the wide words."""
    rows = json.loads(read("lemmas/outliers.json"))["rows"]
    page = (LEMMAS / "README.md").read_text(encoding="utf-8")
    pattern = r"^\| (none|center|origin) \| (\S+) \| (\S+) \| (.*) \|$"
    table = re.findall(pattern, page, re.MULTILINE)
    assert len(table) == 20
    for place, share, dim, cells in table:
        shown = [cell.strip() for cell in cells.split("|")]
        expected = []
        for name, form in (("sigma", "{:.4f}"), ("theta", "{:.2f}")):
            for width in (0.6, 1.2):
                case = (
                    place,
                    float(share),
                    None if dim == "∞" else int(dim.replace(",", "")),
                    width,
                )
                own = [
                    row[name]
                    for row in rows
                    if (row["place"], row["alpha"], row["dim"], row["width"]) == case
                ]
                values = np.array(own)
                text = form.format(values.mean())
                limit = name == "sigma" and dim == "∞"
                spread = "" if limit else " ± " + form.format(values.std(ddof=1))
                expected.append(text.replace("-", "−") + spread)
        assert shown == expected, (place, share, dim)
