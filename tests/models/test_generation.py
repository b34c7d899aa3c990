"""Beam search with fairseq's own generator: its scores are those of teacher forcing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.search import DiverseBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator

from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task

BEGIN = torch.tensor([2])
DICTIONARY = make_task().target_dictionary


def generate(
    models: list[Any], batch: dict[str, Any], **settings: Any
) -> list[tuple[int, dict[str, Any]]]:
    """Hypotheses of a beam search, as fairseq-generate runs it, with the rows of their sources."""
    settings = {"beam_size": 4, "max_len_b": 9} | settings
    generator = SequenceGenerator(models, DICTIONARY, **settings)
    found = generator.generate(models, batch)
    assert all(len(hypotheses) == settings["beam_size"] for hypotheses in found)
    return [(row, each) for row, hypotheses in enumerate(found) for each in hypotheses]


def check_scores(
    models: list[Any], batch: dict[str, Any], row: int, hypothesis: Any, temperature: float = 1.0
) -> None:
    """Scores of a hypothesis are log-probabilities by teacher forcing, averaged over models."""
    tokens = hypothesis["tokens"]
    source, previous = batch["net_input"]["src_tokens"][[row]], torch.cat([BEGIN, tokens[:-1]])
    probs = []
    for model in models:
        features, extra = model(source, source.ne(1).sum(1), previous.unsqueeze(0))
        probs.append(model.get_normalized_probs((features / temperature, extra), log_probs=False))
    expected = torch.stack(probs).mean(0)[0].gather(1, tokens.unsqueeze(1)).log().squeeze(1)
    torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("names", [["lstm"], ["gru"], ["transformer", "lstm"]])
def test_beam_scores_are_those_of_teacher_forcing(names: list[str]) -> None:
    recursion = {"transformer": {"composition_passes": -1}}
    models = [make_model(n, seed=seed, **recursion.get(n, {})) for seed, n in enumerate(names)]
    batch = make_batch()
    with torch.no_grad():
        for row, hypothesis in generate(models, batch):
            check_scores(models, batch, row, hypothesis)


def let_sentences_end(model: Any, batch: dict[str, Any], scale: float = 3.5) -> None:
    """Give the end of a sentence the mean context vector, times a scale, as its sense."""
    layer = model.decoder.output
    ends = layer.inventory.word_of_sense == 2
    with torch.no_grad():
        features, _ = model(**batch["net_input"])
        mean = features.flatten(0, 1).mean(0)
        layer.weight[ends] = scale * mean / mean.norm()
        layer.theta[ends] = 0.0


@pytest.mark.parametrize("passes", [-1, 0])
@pytest.mark.parametrize("settings", [
    {"temperature": 1.5, "min_len": 5},
    {"beam_size": 7},
    {"search_strategy": Sampling(DICTIONARY, sampling_topk=5)},
    {"search_strategy": DiverseBeamSearch(DICTIONARY, num_groups=2, diversity_strength=0.5)},
])  # fmt: skip
def test_scores_of_the_transformer_are_exact_however_it_searches(
    passes: int, settings: dict[str, Any]
) -> None:
    """Sentences leave the batch at different steps; two of them are the same sentence."""
    batch = make_batch(lengths=(6, 6, 4, 7))
    source = batch["net_input"]["src_tokens"]
    source[1] = source[0]
    model = make_model("transformer", composition_passes=passes)
    let_sentences_end(model, batch)
    torch.manual_seed(4)
    lengths = set()
    with torch.no_grad():
        for row, hypothesis in generate([model], batch, max_len_b=12, **settings):
            lengths.add(len(hypothesis["tokens"]))
            if not isinstance(settings.get("search_strategy"), DiverseBeamSearch):  # has a penalty
                check_scores([model], batch, row, hypothesis, settings.get("temperature", 1.0))
    assert len(lengths) > 1


@pytest.mark.parametrize("passes", [-1, 0])
def test_attention_of_hypotheses_is_that_of_the_last_pass(passes: int) -> None:
    """What --print-alignment reads."""
    model, batch = make_model("transformer", composition_passes=passes), make_batch()
    with torch.no_grad():
        for row, hypothesis in generate([model], batch):
            source = batch["net_input"]["src_tokens"][[row]]
            previous = torch.cat([BEGIN, hypothesis["tokens"][:-1]]).unsqueeze(0)
            _, extra = model(source, source.ne(1).sum(1), previous)
            # [src_len, len]; fairseq leaves out the last step's of hypotheses cut at max_len
            expected = extra["attn"][0][0].t()
            torch.testing.assert_close(hypothesis["attention"], expected, rtol=1e-4, atol=1e-4)
