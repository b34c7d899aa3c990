"""The criterion: losses and logs of fairseq's own, statistics, and the weights of mixtures."""

import math
from typing import Any

import pytest
import torch
from fairseq import metrics
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion, output_layer_of
from tests.helpers.fairseq_fixtures import MODELS, make_batch, make_model, make_task


def criterion_of(kind: Any, **settings: Any) -> Any:
    return kind(make_task(), sentence_avg=False, **({"label_smoothing": 0.1} | settings))


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {key: value.grad.clone() for key, value in model.named_parameters()}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos", "mixture"])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.0}, {"ignore_prefix_size": 2}])
def test_losses_and_logs_are_fairseqs_own(name: str, layer: str, settings: dict[str, Any]) -> None:
    kernels: dict[str, Any] = {"mixture_kernels": "lin, log"} if layer == "mixture" else {}
    model = make_model(name, output_layer=layer, spread=1.0, **kernels)
    batch = make_batch()
    stock = criterion_of(LabelSmoothedCrossEntropyCriterion, report_accuracy=True, **settings)
    ours = criterion_of(KerbsCrossEntropyCriterion, report_accuracy=True, **settings)
    expected, size, expected_log = stock(model, batch)
    found, found_size, found_log = ours(model, batch)
    assert found_size == size
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    for key in ("loss", "nll_loss", "n_correct", "total", "ntokens", "nsentences"):
        assert float(found_log[key]) == pytest.approx(float(expected_log[key]), rel=1e-5), key
    wanted = gradients(model, expected)
    torch.testing.assert_close(gradients(model, found), wanted, rtol=2e-4, atol=2e-4)


def test_training_records_every_target_once_and_validation_none() -> None:
    model = make_model("transformer")
    batch = make_batch()
    ours = criterion_of(KerbsCrossEntropyCriterion)
    inventory = model.decoder.output.inventory
    ours(model.eval(), batch)
    assert inventory.pending.abs().sum() == 0
    _, _, log = ours(model.train(), batch)
    assert float(inventory.update(0.0)) == batch["ntokens"]
    assert float(inventory.log_prob.sum()) == pytest.approx(-float(log["nll_loss"]), rel=1e-5)


def test_the_regularizer_adds_the_variance_of_the_weights_while_training() -> None:
    model = make_model("transformer", output_layer="mos").train()
    batch = make_batch()
    model.decoder.output.mixing.weight.data.mul_(5.0)
    plain = criterion_of(KerbsCrossEntropyCriterion)
    ours = criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=0.5)
    features, _ = model(**batch["net_input"])
    weights = (features[batch["target"].ne(1)] @ model.decoder.output.mixing.weight.t()).softmax(1)
    variance = ((weights - weights.mean(1, keepdim=True)) ** 2).sum(1) / 3
    assert variance.mean() > 0.01
    without, _, _ = plain(model, batch)
    loss, _, log = ours(model, batch)
    torch.testing.assert_close(loss, without + 0.5 * variance.sum())
    wanted = gradients(model, without + 0.5 * variance.sum())
    torch.testing.assert_close(gradients(model, loss), wanted, rtol=1e-4, atol=1e-5)
    each, _, _ = ours(model, batch, reduce=False)
    assert each.shape == (batch["target"].numel(),)
    assert not each[batch["target"].flatten() == 1].any()
    torch.testing.assert_close(each.sum(), loss)
    assert float(log["nll_loss"]) == pytest.approx(float(plain(model, batch)[2]["nll_loss"]))
    model.eval()
    torch.testing.assert_close(ours(model, batch)[0], plain(model, batch)[0])


@pytest.mark.parametrize(("layer", "rho"), [("mixture", 0.1), ("mos", 0.0), ("softmax", 0.0)])
def test_the_regularizer_of_the_papers_is_the_default(layer: str, rho: float) -> None:
    """Gao et al., Section 4.4: "all mixture experiments with ρ = 0.1"; Yang et al. have none."""
    model = make_model("transformer", output_layer=layer).train()
    batch = make_batch()
    loss, explicit, without = (
        criterion_of(KerbsCrossEntropyCriterion, **flags)(model, batch)[0].item()
        for flags in ({}, {"mixture_regularization": rho}, {"mixture_regularization": 0.0})
    )
    assert loss == explicit
    assert (loss > without + 1e-3) == (rho > 0)


def test_weights_and_variance_are_logged_and_can_be_summed() -> None:
    model = make_model("lstm", output_layer="mos")
    batches = [make_batch(), make_batch((3, 5))]
    ours = criterion_of(KerbsCrossEntropyCriterion, ignore_prefix_size=1)
    logs = [ours(model, batch)[2] for batch in batches]
    assert ours.logging_outputs_can_be_summed()
    summed = [{key: sum(log[key] for log in logs) for key in logs[0]}]
    kept = [model(**b["net_input"])[0][:, 1:][b["target"][:, 1:].ne(1)] for b in batches]
    expected = model.decoder.output.log_weights(torch.cat(kept)).exp()
    for outputs in (logs, summed):
        with metrics.aggregate(new_root=True) as found:
            KerbsCrossEntropyCriterion.reduce_metrics(outputs)
        values = found.get_smoothed_values()
        mean = [values[f"mixture_weight_{k}"] for k in range(3)]
        assert mean == pytest.approx(expected.mean(0).tolist(), abs=1e-4)
        variance = expected.var(1, unbiased=False).mean().item()
        assert values["mixture_variance"] == pytest.approx(variance, abs=1e-6)
        assert "mixture_tokens" not in values


def test_wrong_architectures_and_regularizers_end_with_one_sentence() -> None:
    with pytest.raises(SystemExit, match="--criterion kerbs_cross_entropy needs one of"):
        output_layer_of(torch.nn.Linear(2, 2))
    for rho in (-0.1, math.nan, math.inf):
        with pytest.raises(SystemExit, match=r"--mixture-regularization .* 0 or more"):
            criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=rho)
    ours = criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=0.1)
    with pytest.raises(SystemExit, match=r"--output-layer mos"):
        ours(make_model("lstm"), make_batch())
