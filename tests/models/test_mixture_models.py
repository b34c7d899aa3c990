"""Mixtures of softmaxes and of kernels in fairseq: criterion, models, flags."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fairseq import metrics

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from tests.criterions.test_kerbs_cross_entropy import criterion, gradients
from tests.helpers.fairseq_fixtures import (
    make_batch,
    make_model,
)

# ------------------------------------------------------------------------- criterion


def test_the_regularizer_adds_the_variance_of_the_weights_while_training() -> None:
    model, batch = make_model("transformer", output_layer="mos").train(), make_batch()
    model.decoder.output.mixing.weight.data.mul_(5.0)
    plain = criterion(KerbsCrossEntropyCriterion)
    ours = criterion(KerbsCrossEntropyCriterion, mixture_regularization=0.5)
    features, _ = model(**batch["net_input"])
    kept = features[batch["target"].ne(1)]
    weights = (kept @ model.decoder.output.mixing.weight.t()).softmax(1)
    variance = ((weights - weights.mean(1, keepdim=True)) ** 2).sum(1) / 3
    assert variance.mean() > 0.01
    without, _, _ = plain(model, batch)
    loss, _, log = ours(model, batch)
    torch.testing.assert_close(loss, without + 0.5 * variance.sum())
    wanted = gradients(model, without + 0.5 * variance.sum())
    for key, value in gradients(model, loss).items():
        torch.testing.assert_close(value, wanted[key], rtol=1e-4, atol=1e-5, msg=key)
    each, _, _ = ours(model, batch, reduce=False)
    torch.testing.assert_close(each.sum(), loss)
    assert float(log["nll_loss"]) == pytest.approx(float(plain(model, batch)[2]["nll_loss"]))
    model.eval()
    torch.testing.assert_close(ours(model, batch)[0], plain(model, batch)[0])


def test_weights_and_variance_are_logged_and_can_be_summed() -> None:
    model, batches = make_model("lstm", output_layer="mos"), [make_batch(), make_batch((3, 5))]
    ours = criterion(KerbsCrossEntropyCriterion, ignore_prefix_size=1)
    logs = [ours(model, batch)[2] for batch in batches]
    assert ours.logging_outputs_can_be_summed()
    summed = [{key: sum(log[key] for log in logs) for key in logs[0]}]
    tokens = [
        model.decoder.output.log_weights(model(**batch["net_input"])[0][:, 1:]).exp()[
            batch["target"][:, 1:].ne(1)
        ]
        for batch in batches
    ]
    expected = torch.cat(tokens)
    for outputs in (logs, summed):
        with metrics.aggregate(new_root=True) as found:
            KerbsCrossEntropyCriterion.reduce_metrics(outputs)
        values = found.get_smoothed_values()
        mean = [values[f"mixture_weight_{k}"] for k in range(3)]
        assert mean == pytest.approx(expected.mean(0).tolist(), abs=1e-4)
        variance = expected.var(1, unbiased=False).mean().item()
        assert values["mixture_variance"] == pytest.approx(variance, abs=1e-4)
        assert "mixture_tokens" not in values


def test_wrong_regularizers_end_with_one_sentence() -> None:
    for rho in (-0.1, math.nan):
        with pytest.raises(SystemExit, match=r"--mixture-regularization .* 0 or more"):
            criterion(KerbsCrossEntropyCriterion, mixture_regularization=rho)
    ours = criterion(KerbsCrossEntropyCriterion, mixture_regularization=0.1)
    with pytest.raises(SystemExit, match=r"--output-layer mos"):
        ours(make_model("lstm"), make_batch())


# ------------------------------------------------------------------------- models


def test_mos_reaches_farther_than_the_printed_tanh() -> None:
    mos = make_model("lstm", output_layer="mos").decoder.output
    other: dict[str, Any] = {"output_layer": "mixture", "mixture_kernels": "lin,lin,lin"}
    mixture = make_model("lstm", **other).decoder.output
    assert (mos.tanh_scale.item(), mixture.tanh_scale.item()) == (4.0, 1.0)
    h = 5.0 * torch.randn(7, mos.embed_dim)
    mixture.load_state_dict(mos.state_dict())
    assert torch.equal(mixture.contexts(h), mos.contexts(h))
    assert mos.contexts(h).abs().max() > 1.0
