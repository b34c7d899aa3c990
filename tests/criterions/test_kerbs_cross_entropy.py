"""The criterion against fairseq's own, and what it records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.lstm import LSTMModel

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.output_layers import base
from tests.helpers.fairseq_fixtures import MODELS, make_batch, make_model, make_task


def criterion(kind: Any, **settings: Any) -> Any:
    """A criterion on the tiny task."""
    return kind(make_task(), sentence_avg=False, **({"label_smoothing": 0.1} | settings))


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {key: value.grad.clone() for key, value in model.named_parameters()}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos", "mixture"])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.0}, {"ignore_prefix_size": 2}])
def test_same_loss_logs_and_gradients_as_fairseqs_own(
    name: str, layer: str, settings: dict[str, Any]
) -> None:
    kernels: dict[str, Any] = {"mixture_kernels": "lin, log"} if layer == "mixture" else {}
    model, batch = make_model(name, output_layer=layer, spread=1.0, **kernels), make_batch()
    stock = criterion(LabelSmoothedCrossEntropyCriterion, report_accuracy=True, **settings)
    ours = criterion(KerbsCrossEntropyCriterion, report_accuracy=True, **settings)
    expected, size, expected_log = stock(model, batch)
    found, found_size, found_log = ours(model, batch)
    assert found_size == size
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    for key in ("loss", "nll_loss", "n_correct", "total", "ntokens", "nsentences"):
        assert float(found_log[key]) == pytest.approx(float(expected_log[key]), rel=1e-5), key
    wanted = gradients(model, expected)
    for key, value in gradients(model, found).items():
        torch.testing.assert_close(value, wanted[key], rtol=2e-4, atol=2e-4, msg=key)


def test_accuracy_scores_a_few_positions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model("lstm"), make_batch()
    features, _ = model(**batch["net_input"])
    layer = model.decoder.output
    expected = layer.log_probs(features).argmax(-1)
    sizes = []
    stock = layer.log_probs

    def log_probs(h: torch.Tensor) -> torch.Tensor:
        sizes.append(len(h))
        scores: torch.Tensor = stock(h)
        return scores

    monkeypatch.setattr(base, "PREDICTED_SCORES", 5 * layer.vocab_size)
    monkeypatch.setattr(layer, "log_probs", log_probs)
    assert torch.equal(layer.predict(features), expected)
    assert max(sizes) == 5


def test_token_losses_add_up() -> None:
    model, batch = make_model("transformer"), make_batch()
    ours = criterion(KerbsCrossEntropyCriterion)
    each, _, _ = ours(model, batch, reduce=False)
    total, _, _ = ours(model, batch)
    assert each.shape == (batch["target"].numel(),)
    torch.testing.assert_close(each.sum(), total)
    assert each[batch["target"].flatten() == 1].eq(0).all()


def test_training_records_every_target_once_and_validation_none() -> None:
    model, batch = make_model("transformer"), make_batch()
    ours = criterion(KerbsCrossEntropyCriterion)
    inventory = model.decoder.output.inventory
    ours(model.eval(), batch)
    assert inventory.pending.abs().sum() == 0
    _, _, log = ours(model.train(), batch)
    assert float(inventory.update(0.0)) == batch["ntokens"]
    assert float(inventory.log_prob.sum()) == pytest.approx(-float(log["nll_loss"]), rel=1e-5)


def test_another_architecture_is_refused_with_one_sentence() -> None:
    class Stock(LSTMModel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, **_: Any) -> tuple[torch.Tensor, None]:
            return torch.zeros(3, 7, 8), None

    with pytest.raises(SystemExit, match="--criterion kerbs_cross_entropy needs one of"):
        criterion(KerbsCrossEntropyCriterion)(Stock(), make_batch())
