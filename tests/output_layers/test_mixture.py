"""Mixtures as output layers: scores, predictions, copies and first parameters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer
from tests.likelihood.test_mixture import KERNEL_LISTS, make, reference


@pytest.mark.parametrize("kernels", KERNEL_LISTS[1:], ids=",".join)
def test_log_probs_nll_and_predict_agree_and_follow_every_change(kernels: list[str]) -> None:
    layer = make(kernels, torch.float32).eval()
    h, target = torch.randn(4, 5, 6), torch.randint(13, (4, 5))
    before = torch.zeros(4, 5, 13)
    for parameter in layer.parameters():
        parameter.data.mul_(1.5)  # as optimizers do, unseen by version counters
        slow = reference(copy.deepcopy(layer).double(), h.view(20, 6).double())
        with torch.no_grad():
            found = layer.log_probs(h)
            torch.testing.assert_close(layer.log_probs(h[0, 0]), found[0, 0])
            each, predicted = layer.nll(h, target, reduction="none"), layer.predict(h)
        torch.testing.assert_close(found, slow.view(4, 5, 13).float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.log_probs(h).detach(), found, rtol=1e-4, atol=1e-5)
        nll = -found.gather(2, target.unsqueeze(2)).squeeze(2)
        torch.testing.assert_close(each, nll, rtol=1e-4, atol=1e-5)
        assert torch.equal(predicted, found.argmax(-1))
        assert not torch.allclose(found, before)
        before = found
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    with torch.no_grad():
        assert all(torch.equal(twin.log_probs(h), before) for twin in twins)


def test_parameters_begin_as_documented_and_are_all_anchored() -> None:
    layer = MixtureOutputLayer(64, 500, ["lin", "kerbs", "log"])
    stds = {"weight": 64**-0.5, "projections.weight": 192**-0.5, "thetas.1": 0.1}
    found = {name: value.std().item() for name, value in layer.named_parameters()}
    assert found == pytest.approx(stds | {"mixing.weight": 192**-0.5}, rel=0.15)
    node: Any = layer.anchor(torch.randn(3, 64, requires_grad=True)).grad_fn
    anchored = {getattr(parent, "variable", None) for parent, _ in node.next_functions}
    assert set(layer.parameters()) < anchored
