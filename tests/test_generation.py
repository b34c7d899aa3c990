"""Beam search with fairseq's own generator: its scores are those of teacher forcing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from tests.fairseq_fixtures import make_batch, make_model, make_task, teacher_forced


def generate(
    models: list[Any], batch: dict[str, Any], **settings: Any
) -> list[list[dict[str, Any]]]:
    """Hypotheses of a beam search, as fairseq-generate runs it."""
    generator = SequenceGenerator(
        models, make_task().target_dictionary, beam_size=4, max_len_b=9, **settings
    )
    found: list[list[dict[str, Any]]] = generator.generate(models, batch)
    return found


def rescore(
    models: list[Any], batch: dict[str, Any], row: int, tokens: torch.Tensor
) -> torch.Tensor:
    """Log-probability of each token of a hypothesis by teacher forcing, averaged over models."""
    previous = torch.cat([torch.tensor([2]), tokens[:-1]]).unsqueeze(0)
    source = batch["net_input"]["src_tokens"][row : row + 1]
    net_input = {
        "src_tokens": source,
        "src_lengths": source.ne(1).sum(1),
        "prev_output_tokens": previous,
    }
    scores = torch.stack([teacher_forced(model, {"net_input": net_input})[0] for model in models])
    averaged = scores.logsumexp(0) - torch.tensor(float(len(models))).log()
    return averaged.gather(1, tokens.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("names", [["transformer"], ["lstm"], ["gru"], ["transformer", "lstm"]])
def test_beam_scores_are_those_of_teacher_forcing(names: list[str]) -> None:
    models = [make_model(name, seed=seed) for seed, name in enumerate(names)]
    batch = make_batch()
    with torch.no_grad():
        for row, hypotheses in enumerate(generate(models, batch)):
            assert len(hypotheses) == 4
            for hypothesis in hypotheses:
                expected = rescore(models, batch, row, hypothesis["tokens"])
                torch.testing.assert_close(
                    hypothesis["positional_scores"], expected, rtol=1e-4, atol=1e-4
                )


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_temperature_and_prefix_work(name: str) -> None:
    model, batch = make_model(name), make_batch()
    prefix = torch.tensor([[5, 6]] * 3)
    generator = SequenceGenerator(
        [model], make_task().target_dictionary, beam_size=2, max_len_b=8, temperature=2.0
    )
    with torch.no_grad():
        found = generator.generate([model], batch, prefix_tokens=prefix)
    for hypotheses in found:
        for hypothesis in hypotheses:
            assert hypothesis["tokens"][:2].tolist() == [5, 6]
            assert torch.isfinite(hypothesis["positional_scores"]).all()
