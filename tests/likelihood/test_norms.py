"""The two rules for gradients through norms give the same gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, InnerProductKernel, KerbsKernel
from fairseq_kerbs.kernels.base import Partials, safe_inverse
from fairseq_kerbs.likelihood.norms import HOMOGENEOUS, PARTIALS, NormRule, norm_rule
from tests.helpers.likelihood import assert_same, chunks_of, gradients, nll
from tests.helpers.reference import make_problem, naive_token_losses


class KerbsKernelByPartials(KerbsKernel):
    """The KerBS kernel without its homogeneity: all partials are written down."""

    homogeneous = False

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        partials = super().partials(x, h_norm, w_norm, prepared)
        rest = self.value(x, h_norm, w_norm, prepared) - x * partials.x
        return partials._replace(
            h_norm=rest * safe_inverse(h_norm), w_norm=rest * safe_inverse(w_norm)
        )


class HomogeneousInnerProduct(InnerProductKernel):
    """The inner product, which is homogeneous, too, by the rule for homogeneous kernels."""

    homogeneous = True


class Sloped(InnerProductKernel):
    """K = h·w + |h|/4 − |w|/2, whose partial derivatives are numbers."""

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        return x + 0.25 * h_norm - 0.5 * w_norm

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        return Partials(1.0, h_norm=0.25, w_norm=-0.5)


def test_partials_may_be_numbers() -> None:
    p = make_problem(23, 11, 29)
    norms = 0.25 * p.h.norm(dim=1, keepdim=True) - 0.5 * p.w.norm(dim=1)
    logits = p.h @ p.w.t() + norms  # [N, M]
    words = torch.stack([logits[:, p.word_of_sense == v].logsumexp(1) for v in range(11)], 1)
    losses = F.cross_entropy(words, p.target, reduction="none")
    with chunks_of(5):
        loss = nll(p, kernel=Sloped(), reduction="none")
    torch.testing.assert_close(loss, losses)
    found = torch.autograd.grad(loss.sum(), (p.h, p.w))
    expected = torch.autograd.grad(losses.sum(), (p.h, p.w))
    assert_same(list(found), list(expected), 1e-10)


def test_a_homogeneous_kernel_has_the_rule_for_it() -> None:
    rules = {name: norm_rule(kernel()) for name, kernel in KERNELS.items()}
    assert rules.pop("kerbs") is HOMOGENEOUS
    assert rules.pop("kerbs_released") is HOMOGENEOUS
    assert set(rules.values()) == {PARTIALS}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("total", [11, 29])
def test_both_rules_give_the_naive_gradients(smoothing: float, reduction: str, total: int) -> None:
    p = make_problem(23, 11, total)
    expected = gradients(naive_token_losses(p, "kerbs", smoothing).sum(), p)
    for kernel in (KerbsKernel(), KerbsKernelByPartials()):
        with chunks_of(5):
            loss = nll(p, kernel=kernel, label_smoothing=smoothing, reduction=reduction).sum()
        assert_same(gradients(loss, p), expected, 1e-10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_both_rules_agree_on_the_inner_product(smoothing: float) -> None:
    p = make_problem()
    expected = gradients(naive_token_losses(p, "lin", smoothing).sum(), p)
    for kernel in (InnerProductKernel(), HomogeneousInnerProduct()):
        loss = nll(p, kernel=kernel, label_smoothing=smoothing)
        assert_same(gradients(loss, p), expected, 1e-10)


@pytest.mark.parametrize("rule", [PARTIALS, HOMOGENEOUS])
def test_a_zero_vector_gets_no_gradient_through_its_norm(rule: NormRule) -> None:
    product = torch.ones(2, 3)
    vectors = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    added = rule.add(product, vectors, vectors.norm(dim=1), torch.full((2,), 5.0))
    assert added[0].tolist() == [1.0, 1.0, 1.0]
    # 5 in the direction of the vector; the homogeneous rule takes off the product along it, 1
    along = 6.0 if rule is PARTIALS else 5.0
    assert added[1].tolist() == [along, 1.0, 1.0]
