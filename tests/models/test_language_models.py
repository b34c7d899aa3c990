"""Language models: recursion, both ways of computing it, decoding, padding, what a cloze sees."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.criterions.kerbs_cross_entropy import KerbsCrossEntropyCriterion
from fairseq_kerbs.models import (
    BilstmLanguageModel,
    GruLanguageModel,
    LstmLanguageModel,
    TransformerLanguageModel,
)
from fairseq_kerbs.models.recurrent_lm import reversal
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers.fairseq_fixtures import dictionary, make_task

RECURRENT = {"hidden_size": 12, "embed_dim": 10, "dropout": 0.0}
TRANSFORMER = {
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "tokens_per_sample": 30,
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gru": (GruLanguageModel, RECURRENT | {"layers": 1}),
    "lstm": (LstmLanguageModel, RECURRENT | {"layers": 2}),
    "transformer": (TransformerLanguageModel, TRANSFORMER),
    "bilstm": (BilstmLanguageModel, RECURRENT | {"layers": 2}),
}
LEFT_TO_RIGHT = ("gru", "lstm", "transformer")
CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


def make(name: str, **flags: Any) -> Any:
    """A tiny model in evaluation mode whose senses differ and whose usages are uneven."""
    torch.manual_seed(0)
    kind, sizes = MODELS[name]
    task = make_task()
    task.source_dictionary = task.target_dictionary
    task.targets = ["self" if name == "bilstm" else "future"]
    model = kind.build_model(argparse.Namespace(**(sizes | flags)), task)
    layer = model.decoder.output
    if isinstance(layer.theta, nn.Parameter):
        nn.init.normal_(layer.theta, std=3.0)
    layer.weight.data.mul_(4.0)
    nn.init.uniform_(layer.usage)
    return model.eval()


def text(lengths: tuple[int, ...] = (7, 4, 6), pad_to: int = 0) -> tuple[Tensor, Tensor]:
    """Sources and targets of a left-to-right model [batch, len], padded on the right."""
    generator = torch.Generator().manual_seed(3)
    source = torch.full((len(lengths), max(*lengths, pad_to)), 1)
    target = source.clone()
    for row, length in enumerate(lengths):
        words = torch.randint(4, 23, (length,), generator=generator)
        source[row, 0], source[row, 1:length] = 2, words[:-1]
        target[row, :length] = words
    return source, target


def log_probs(model: Any, tokens: Tensor, **others: Any) -> Tensor:
    return model.get_normalized_probs(model(tokens, **others), log_probs=True)


# ------------------------------------------------------------------- the recursion itself


def recursion(model: Any, row: Tensor, name: str) -> Tensor:
    """Eq. 2 and 6–7 word by word for one text [len], from torch's own cells: [len, d]."""
    decoder = model.decoder
    layer, sizes = decoder.output, (10, 12)
    posterior = decoder.embed_tokens.posterior
    embed = ComposedEmbedding(layer, 1, posterior)
    cells = []
    for number, weights in enumerate(decoder.rnn.all_weights):
        cell = CELLS[name](sizes[min(number, 1)], 12, dtype=layer.weight.dtype)
        for mine, given in zip(
            (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh), weights, strict=True
        ):
            mine.data.copy_(given.data)
        cells.append(cell)
    states: list[Any] = [None] * len(cells)
    context: Tensor | None = None
    found = []
    for word in row:
        below = embed(word, context)
        for number, cell in enumerate(cells):
            states[number] = cell(below, states[number])
            below = states[number][0] if name == "lstm" else states[number]
        context = decoder.to_context(below)
        found.append(context)
    return torch.stack(found)


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("composition", ["posterior", "prior"])
def test_context_vectors_follow_the_recursion(name: str, composition: str) -> None:
    model = make(name, composition=composition).double()
    source, target = text()
    with torch.no_grad():
        features, _ = model(source)
        for row, words in enumerate(source):
            length = int(target[row].ne(1).sum())
            expected = recursion(model, words[:length], name)
            torch.testing.assert_close(features[row, :length], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_composition_matters(name: str) -> None:
    """The other tests would pass as well if the posterior were never used."""
    source, _ = text()
    with torch.no_grad():
        posterior, prior = (
            log_probs(make(name, composition=kind), source) for kind in ("posterior", "prior")
        )
    torch.testing.assert_close(posterior[:, 0], prior[:, 0])  # no word before position 0
    assert (posterior[:, 1:] - prior[:, 1:]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize(
    "flags", [{"output_layer": "softmax"}, {"total_senses": 1.0}, {"composition": "prior"}]
)
def test_stepping_and_the_whole_sequence_agree(name: str, flags: dict[str, Any]) -> None:
    """Where composition does not matter: the same outputs and gradients, from the same weights."""
    source, target = text()
    found = []
    for stepping in (False, True):
        model = make(name, **flags).double()
        assert not model.decoder.embed_tokens.posterior
        if stepping:
            decoder = model.decoder
            look_up = decoder.embed_tokens.look_up
            if "composition" in flags:  # stay with the prior at every step
                decoder.embed_tokens.compose = lambda senses, contexts, old=decoder.embed_tokens: (
                    type(old).compose(old, senses, None)
                )
            decoder.embed_tokens.posterior = True
            called: list[int] = []
            decoder.embed_tokens.look_up = lambda words, seen=called, do=look_up: (
                seen.append(1) or do(words)
            )
        loss = model.decoder.output.nll(model(source)[0], target, ignore_index=1)
        loss.backward()
        assert not stepping or called
        found.append((loss.detach(), {k: p.grad for k, p in model.named_parameters()}))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for key, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][key], msg=key)


def test_gradient_of_the_stepping_path() -> None:
    """Against the recursion by autograd, through the posteriors too."""
    source, target = text((5,))
    models = [make("gru").double() for _ in range(2)]
    torch.testing.assert_close(models[0].decoder.output.weight, models[1].decoder.output.weight)
    features, _ = models[0](source)
    models[0].decoder.output.nll(features, target).backward()
    # cells of torch have no gradient of the model's own weights: those of the rest are compared
    expected = recursion(models[1], source[0], "gru")
    models[1].decoder.output.nll(expected, target[0]).backward()
    for one, other in (("output.weight", "output.theta"), ("to_context.weight", "to_context.bias")):
        for name in (one, other):
            first, second = (model.decoder.get_parameter(name).grad for model in models)
            torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-11, msg=name)


# ------------------------------------------------------------------- decoding and padding


def step_by_step(model: Any, source: Tensor, reorder_at: int) -> Tensor:
    """Log-probabilities from incremental decoding, hypotheses reversed at one step."""
    state: dict[str, Any] = {}
    rows = torch.arange(len(source))
    results = []
    for step in range(source.shape[1]):
        if step == reorder_at:
            order = rows.flip(0)
            model.decoder.reorder_incremental_state_scripting(state, order)
            source, rows = source[order], rows[order]
        output = model.decoder(source[:, : step + 1], incremental_state=state)
        scores = model.get_normalized_probs(output, log_probs=True)[:, -1]
        output[0].mul_(7.0)  # as a generator divides by the temperature
        results.append(scores[rows.argsort()])
    return torch.stack(results, 1)


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
@pytest.mark.parametrize(
    "flags",
    [
        {"composition": "prior"},
        {"output_layer": "softmax"},
        {"output_layer": "mos"},
        {"composition_passes": -1},
        {"composition_passes": -1, "sense_bias": True},
    ],
)
def test_decoding_step_by_step_gives_the_same_scores(name: str, flags: dict[str, Any]) -> None:
    model = make(name, **flags)
    source, target = text((6, 6, 6))
    with torch.no_grad():
        together = log_probs(model, source)
        single = step_by_step(model, source, reorder_at=3)
    torch.testing.assert_close(single, together, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(together.exp().sum(-1), torch.ones(3, 6))
    assert target.ne(1).all()


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    model = make(name)
    plain, _ = text()
    padded, _ = text(pad_to=11)
    if side == "left":
        padded = torch.stack([row.roll(len(row) - int(row.ne(1).sum())) for row in padded])
    with torch.no_grad():
        alone = [log_probs(model, row[row.ne(1)].unsqueeze(0))[0] for row in plain]
        found = log_probs(model, padded)
    for row, expected in enumerate(alone):
        mine = found[row][padded[row].ne(1)]
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_no_position_sees_what_follows(name: str) -> None:
    model = make(name)
    source, _ = text((7, 7))
    changed = source.clone()
    changed[:, 4:] = 4 + (changed[:, 4:] - 4 + 5) % 19
    with torch.no_grad():
        before, after = log_probs(model, source), log_probs(model, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert (before[:, 4:] - after[:, 4:]).abs().amin(1).max() > 1e-4


# ------------------------------------------------------------------- what the cloze model sees


def cloze_gradients(model: Any, tokens: Tensor) -> Tensor:
    """Size of d features[t] / d embedding[s], [len (t), len (s)], summed over the batch."""
    embed = model.decoder.embed_tokens
    seen: list[Tensor] = []

    def remember(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = embed.register_forward_hook(remember)
    features, _ = model.decoder.extract_features(tokens)
    handle.remove()
    rows = []
    for t in range(tokens.shape[1]):
        (gradient,) = torch.autograd.grad(features[:, t].square().sum(), seen[0], retain_graph=True)
        rows.append(gradient.abs().sum((0, 2)))
    return torch.stack(rows)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_cloze_state_sees_every_word_but_its_target(layers: int) -> None:
    """By gradients: all words of the text except the one at the same place."""
    tokens, _ = text((7,))
    found = cloze_gradients(make("bilstm", layers=layers).double(), tokens)
    own = torch.eye(7, dtype=torch.bool)
    assert found[own].eq(0.0).all()
    assert (found[~own] > 0.0).all()


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_each_direction_sees_its_side_alone(direction: str) -> None:
    """One direction silenced: what is left has read t − 1 and before, or t + 1 and after."""
    model = make("bilstm").double()
    weight = model.decoder.to_context.weight.data  # [d, 2 · hidden]
    if direction == "forwards":
        weight[:, 12:] = 0.0
    else:
        weight[:, :12] = 0.0
    tokens, _ = text((7,))
    found = cloze_gradients(model, tokens) > 0.0
    ones = torch.ones(7, 7, dtype=torch.bool)
    assert torch.equal(found, ones.tril(-1) if direction == "forwards" else ones.triu(1))


def test_a_changed_word_changes_all_scores_but_its_own() -> None:
    """By perturbation, through embedding and all; in rows with padding."""
    model = make("bilstm").double()
    tokens, _ = text((7, 5))
    with torch.no_grad():
        before = log_probs(model, tokens)
        for place in range(5):
            changed = tokens.clone()
            changed[:, place] = 4 + (changed[:, place] + 3) % 19
            difference = (log_probs(model, changed) - before).abs().amax(-1)  # [batch, len]
            assert difference[:, place].max() == 0.0
            real = tokens.ne(1)
            real[:, place] = False
            assert difference[real].min() > 1e-6


def test_reversal_leaves_padding() -> None:
    tokens = torch.tensor([[5, 6, 7, 1, 1], [5, 6, 7, 8, 9], [5, 1, 1, 1, 1]])
    turned = tokens.gather(1, reversal(tokens, 1))
    assert turned.tolist() == [[7, 6, 5, 1, 1], [9, 8, 7, 6, 5], [5, 1, 1, 1, 1]]


# ------------------------------------------------------------------- training, and wrong flags


@pytest.mark.parametrize("name", list(MODELS))
def test_criterion_trains_all_parameters_and_records(name: str) -> None:
    model = make(name).train()
    source, target = text()
    if name == "bilstm":
        target = source
    task = argparse.Namespace(target_dictionary=dictionary())
    criterion = KerbsCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.0)
    sample = {"net_input": {"src_tokens": source}, "target": target, "ntokens": 17}
    loss, size, log = criterion(model, sample)
    loss.backward()
    expected = -log_probs(model.eval(), source).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.detach(), expected[target.ne(1)].sum().detach())
    missing = [key for key, value in model.named_parameters() if value.grad is None]
    assert not missing
    inventory = model.decoder.output.inventory
    inventory.update(0.0)
    assert float(inventory.interval_count.sum()) == size == 17
    assert log["ntokens"] == 17


@pytest.mark.parametrize(
    ("name", "targets", "flags", "message"),
    [
        ("bilstm", ["future"], {}, "give --self-target"),
        ("gru", ["self"], {}, "leave out --self-target"),
        ("transformer", ["self", "future"], {}, "leave out --self-target"),
        ("lstm", None, {}, "use --task language_modeling"),
        ("gru", ["future"], {"hidden_size": -1}, "--hidden-size is -1"),
        ("bilstm", ["self"], {"dropout": 1.5}, "--dropout is 1.5"),
        ("transformer", ["future"], {"adaptive_input": True}, "--adaptive-input"),
        ("transformer", ["future"], {"decoder_output_dim": 8}, "--decoder-output-dim"),
        ("transformer", ["future"], {"composition_passes": -2}, "--composition-passes is -2"),
        ("gru", ["future"], {"words": 19}, "--output-dictionary-size"),
    ],
)
def test_wrong_flags_end_with_a_sentence(
    name: str, targets: list[str] | None, flags: dict[str, Any], message: str
) -> None:
    kind, sizes = MODELS[name]
    task = make_task()
    task.source_dictionary = dictionary(flags.pop("words", 23))
    if targets is not None:
        task.targets = targets
    with pytest.raises(SystemExit, match=message):
        kind.build_model(argparse.Namespace(**(sizes | flags)), task)


def test_a_cloze_model_refuses_to_generate() -> None:
    model = make("bilstm")
    with pytest.raises(SystemExit, match="cannot generate"):
        model.decoder(text()[0], encoder_out=None)


def test_a_checkpoint_of_another_layer_is_refused() -> None:
    with pytest.raises(SystemExit, match="--total-senses"):
        make("gru").load_state_dict(make("gru", total_senses=2.0).state_dict(), strict=True)
