"""Attention of recurrent encoder-decoders, against one source position at a time."""

import argparse
import itertools
import math
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.models import PRESETS, GruKerbsModel, LstmKerbsModel
from fairseq_kerbs.models.attention import ATTENTIONS, BahdanauAttention, Maxout
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers import attention_reference
from tests.helpers import fairseq_fixtures as tiny
from tests.helpers.fairseq_fixtures import make_model

PADDING = 1
TOLERANCES = {torch.float64: (1e-9, 1e-11), torch.float32: (2e-4, 2e-5)}
ROUNDED = 1e-5, 1e-6  # fairseq's attention of Luong et al. rounds scores to float32
PRECISIONS = pytest.mark.parametrize("dtype", TOLERANCES)
EACH = pytest.mark.parametrize("attention", ATTENTIONS)


def assert_close(
    found: Tensor, expected: Tensor, attention: str = "bahdanau", what: str = ""
) -> None:
    relative, absolute = TOLERANCES[found.dtype]
    if attention == "luong" and found.dtype == torch.float64:
        relative, absolute = ROUNDED
    torch.testing.assert_close(
        found, expected, rtol=relative, atol=absolute, msg=lambda text: f"{what}: {text}"
    )


def attentive_model(name: str, attention: str, layers: int = 1) -> Any:
    """A tiny model whose attention is far from uniform."""
    model = make_model(name, attention=attention, layers=layers, spread=1.0)
    for parameter in model.decoder.attention.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return model


# ------------------------------------------------------------------ modules

MASKS = {
    "none": [[0, 0, 0, 0, 0]] * 3,
    "left": [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]],
    "right": [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]],
    "within": [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 0, 0]],
}


@EACH
@PRECISIONS
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_all_gradients(attention: str, dtype: torch.dtype, mask: str) -> None:
    """Masked positions have no weight, and their outputs no gradient."""
    torch.manual_seed(1)
    module = ATTENTIONS[attention](6).to(dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    padding = torch.tensor(MASKS[mask], dtype=torch.bool)  # [batch, src_len]
    state = torch.randn(3, 6, dtype=dtype, requires_grad=True)
    outputs = torch.randn(5, 3, 6, dtype=dtype, requires_grad=True)
    read, weights = module(state, module.keys(outputs), outputs, padding.t())

    named: dict[str, Tensor] = dict(module.named_parameters())
    expected_reads = []
    expected_weights = []
    for row in range(3):
        places = [j for j in range(5) if not padding[row, j]]
        reference = attention_reference.READS[attention]
        one, alphas = reference(state[row], [outputs[j, row] for j in places], named)
        expected_reads.append(one)
        full = torch.zeros(5, dtype=dtype)
        full[places] = alphas
        expected_weights.append(full)
    assert_close(read, torch.stack(expected_reads), attention)
    assert_close(weights, torch.stack(expected_weights), attention)
    assert weights[padding].eq(0).all()

    of_reads = torch.randn(3, 6, dtype=dtype)
    of_weights = torch.randn(3, 5, dtype=dtype)
    leaves = {"state": state, "outputs": outputs, **named}
    ours_total = (read * of_reads).sum() + (weights * of_weights).sum()
    their_total = (torch.stack(expected_reads) * of_reads).sum()
    their_total = their_total + (torch.stack(expected_weights) * of_weights).sum()
    found = torch.autograd.grad(ours_total, [*leaves.values()])
    expected = torch.autograd.grad(their_total, [*leaves.values()])
    for name, ours, theirs in zip(leaves, found, expected, strict=True):
        assert_close(ours, theirs, attention, name)
        assert theirs.abs().sum() > 0
    assert found[1].transpose(0, 1)[padding].eq(0).all()


def test_bahdanau_by_hand() -> None:
    """Scores 0 and ln 3: weights of a quarter and three quarters."""
    module = BahdanauAttention(1).double()
    with torch.no_grad():
        module.state_proj.weight.fill_(2.0)
        module.key_proj.weight.fill_(3.0)
        module.key_proj.bias.fill_(-1.0)
        module.score_proj.weight.fill_(math.log(3) / math.tanh(1.5))
    outputs = torch.tensor([0.0, 0.5], dtype=torch.float64).view(2, 1, 1)
    state = torch.full((1, 1), 0.5, dtype=torch.float64)  # 2 · 0.5 − 1 + 3 h is 0 and 1.5
    padding = torch.zeros(2, 1, dtype=torch.bool)
    read, weights = module(state, module.keys(outputs), outputs, padding)
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    torch.testing.assert_close(read, torch.tensor([[0.375]], dtype=torch.float64))


def test_gradients_by_differences() -> None:
    torch.manual_seed(1)
    module = BahdanauAttention(4).double()
    layer = Maxout(4, 3).double()
    padding = torch.tensor([[True, False], [False, False], [False, True]])
    state = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    outputs = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def features(state: Tensor, outputs: Tensor, *parameters: Tensor) -> Tensor:
        """gradcheck changes ``parameters`` in place, which are those of the modules."""
        read, weights = module(state, module.keys(outputs), outputs, padding)
        return torch.cat([layer(read), weights], dim=1)

    leaves = (state, outputs, *module.parameters(), *layer.parameters())
    assert torch.autograd.gradcheck(features, leaves)


@PRECISIONS
def test_maxout_takes_the_greater_of_two_units(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer = Maxout(5, 4).to(dtype)
    x = torch.randn(2, 3, 5, dtype=dtype, requires_grad=True)
    leaves = [x, layer.linear.weight, layer.linear.bias]
    found = layer(x)
    rows = [attention_reference.maxout(row, *leaves[1:]) for row in x.flatten(0, 1)]
    expected = torch.stack(rows).view(2, 3, 4)
    assert_close(found, expected)
    factor = torch.randn(2, 3, 4, dtype=dtype)
    gradients = zip(
        torch.autograd.grad((found * factor).sum(), leaves),
        torch.autograd.grad((expected * factor).sum(), leaves),
        strict=True,
    )
    for ours, theirs in gradients:
        assert_close(ours, theirs)


# ------------------------------------------------------------------ models

MODELS = [
    (name, attention, layers)
    for name, attention, layers in itertools.product(("lstm", "gru"), ATTENTIONS, (1, 3))
]
EVERY = pytest.mark.parametrize(("name", "attention", "layers"), MODELS)


def encode(model: Any, source: Tensor) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """Outputs [hidden] of every position of one sentence, and states [1, hidden] of every layer, by
    torch's own bidirectional LSTM or GRU, which never sees padding."""
    encoder = model.encoder
    words = source[source.ne(PADDING)]
    outputs, final = encoder.rnn(encoder.embed_tokens(words).unsqueeze(1))
    finals = final if isinstance(final, tuple) else (final,)
    states = []
    for layer in range(encoder.layers):
        halves = [part[2 * layer : 2 * layer + 2] for part in finals]
        states.append(tuple(torch.cat([half[0], half[1]], dim=1) for half in halves))
    return [output[0] for output in outputs], states


def recur(decoder: Any, inputs: Tensor, states: list[tuple[Tensor, ...]]) -> list[Any]:
    """One step of every layer by torch's own cells."""
    after: list[tuple[Tensor, ...]] = []
    for state, weights in zip(states, decoder.rnn.all_weights, strict=True):
        below = inputs if not after else after[-1][0]
        if len(state) == 2:
            after.append(torch.lstm_cell(below, state, *weights))
        else:
            after.append((torch.gru_cell(below, state[0], *weights),))
    return after


def recursion(model: Any, attention: str, source: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Context vectors [len, d] and weights [len, words of the source] of one sentence."""
    decoder = model.decoder
    embed = ComposedEmbedding(decoder.output, PADDING, decoder.embed_tokens.posterior)
    weights = dict(decoder.attention.named_parameters())
    outputs, states = encode(model, source)
    context: Tensor | None = None
    fed = torch.zeros_like(states[0][0])
    contexts = []
    alphas = []
    for word in words.unsqueeze(1):
        embedded = embed(word, context)  # [1, e]
        if attention == "bahdanau":
            read, alpha = attention_reference.bahdanau(states[-1][0][0], outputs, weights)
            states = recur(decoder, torch.cat([embedded, read.unsqueeze(0)], dim=1), states)
            parts = torch.cat([states[-1][0][0], read, embedded[0]])
            linear = decoder.to_context.linear
            context = attention_reference.maxout(parts, linear.weight, linear.bias).unsqueeze(0)
        else:
            states = recur(decoder, torch.cat([embedded, fed], dim=1), states)
            read, alpha = attention_reference.luong(states[-1][0][0], outputs, weights)
            fed = read.unsqueeze(0)
            context = decoder.to_context(fed)
        contexts.append(context)
        alphas.append(alpha)
    return torch.cat(contexts), torch.stack(alphas)


@EVERY
@PRECISIONS
def test_models_follow_the_recursion(
    name: str, attention: str, layers: int, dtype: torch.dtype
) -> None:
    """Contexts, weights and the gradients of all parameters, from sentences of several lengths that
    are padded on either side."""
    model = attentive_model(name, attention, layers).to(dtype)
    batch = tiny.make_batch((6, 4, 7))
    source, previous = (batch["net_input"][key] for key in ("src_tokens", "prev_output_tokens"))
    source = torch.nn.functional.pad(source, (1, 2), value=PADDING)
    factor = torch.randn(3, 7, 10, dtype=dtype)
    features, extra = model(source, source.ne(PADDING).sum(1), previous)
    losses = [(features * factor)[previous.ne(PADDING)].sum(), torch.zeros((), dtype=dtype)]
    for row, (sentence, words) in enumerate(zip(source, previous, strict=True)):
        length = int(words.ne(PADDING).sum())
        contexts, alphas = recursion(model, attention, sentence, words[:length])
        assert_close(features[row, :length], contexts, attention)
        weights = extra["attn"][0][row, :length]
        assert_close(weights[:, sentence.ne(PADDING)], alphas, attention)
        assert weights[:, sentence.eq(PADDING)].eq(0).all()
        losses[1] = losses[1] + (contexts * factor[row, :length]).sum()
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    found, expected = (
        torch.autograd.grad(loss, [*parameters.values()], allow_unused=True) for loss in losses
    )
    for key, ours, theirs in zip(parameters, found, expected, strict=True):
        assert (ours is None) == (theirs is None), key
        if ours is not None:
            scale = theirs.abs().max().clamp(min=1.0)
            assert_close(ours / scale, theirs / scale, attention, key)
            assert theirs.abs().sum() > 0, key


@EVERY
def test_steps_with_a_reordered_beam_are_teacher_forcing(
    name: str, attention: str, layers: int
) -> None:
    """Sources differ, so that a part of the memory that stays behind is seen."""
    model = attentive_model(name, attention, layers)
    batch = tiny.make_batch((6, 6, 6))
    with torch.no_grad():
        expected = tiny.teacher_forced(model, batch)
        for reorder_at in (-1, 1, 3):
            found = tiny.step_by_step(model, batch, reorder_at)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@EVERY
def test_a_sentence_alone_has_the_scores_that_it_has_in_a_batch(
    name: str, attention: str, layers: int
) -> None:
    model = attentive_model(name, attention, layers).double()
    batch = tiny.make_batch((6, 4, 7))
    source, previous = (batch["net_input"][key] for key in ("src_tokens", "prev_output_tokens"))
    with torch.no_grad():
        together = tiny.teacher_forced(model, batch)
        for row in range(3):
            words, sentence = (side[row][side[row].ne(PADDING)] for side in (previous, source))
            alone = model(sentence[None], torch.tensor([len(sentence)]), words[None])
            scores = model.get_normalized_probs(alone, log_probs=True)[0]
            torch.testing.assert_close(together[row, : len(words)], scores, rtol=1e-6, atol=1e-6)


def test_keys_are_computed_once_a_sentence() -> None:
    model = make_model("lstm")
    batch = tiny.make_batch()
    rows: list[int] = []
    projection = model.decoder.attention.key_proj
    projection.register_forward_hook(lambda *called: rows.append(called[2].shape[0]))
    with torch.no_grad():
        tiny.teacher_forced(model, batch)
        assert rows == [3]
        dictionary = tiny.make_task().target_dictionary
        generator = SequenceGenerator([model], dictionary, beam_size=4, max_len_b=9, min_len=5)
        generator.generate([model], batch)
    assert rows == [3, 12]


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_the_attention_before_the_step_reads_the_state_before_it(name: str) -> None:
    """At step 1 the weights are those of the encoder's final state, whatever the first word is."""
    batch = tiny.make_batch()
    others = batch["net_input"] | {"prev_output_tokens": torch.full((3, 7), 9)}
    with torch.no_grad():
        for attention in ATTENTIONS:
            model = make_model(name, attention=attention)
            first, second = (
                model(**inputs)[1]["attn"][0] for inputs in (batch["net_input"], others)
            )
            same = torch.allclose(first[:, 0], second[:, 0], rtol=0.0, atol=1e-7)
            assert same == (attention == "bahdanau")
            assert not torch.allclose(first[:, 1], second[:, 1], rtol=0.0, atol=1e-7)


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float32(attention: str, dtype: torch.dtype) -> None:
    """As autocast of --amp has it; weights still sum to 1, and gradients are finite."""
    model = make_model("lstm", attention=attention, spread=1.0)
    batch = tiny.make_batch()
    expected, exact = model(**batch["net_input"])
    with torch.autocast("cpu", dtype):
        features, extra = model(**batch["net_input"])
    real = tiny.read_tokens(batch).ne(PADDING)
    torch.testing.assert_close(features[real].float(), expected[real], rtol=0.1, atol=0.1)
    weights = extra["attn"][0][real].float()
    torch.testing.assert_close(weights, exact["attn"][0][real], rtol=0.1, atol=0.02)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)), rtol=0.0, atol=0.02)
    features[real].float().square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), key


# ------------------------------------------------------------------ the flag


def test_bahdanau_is_the_default_of_encoder_decoders_and_others_have_no_such_flag() -> None:
    found = {}
    for arch, model in ARCH_MODEL_REGISTRY.items():
        if model in PRESETS:
            filled = argparse.Namespace()
            ARCH_CONFIG_REGISTRY[arch](filled)
            found[arch] = getattr(filled, "attention", None)
    having = {arch for model in (LstmKerbsModel, GruKerbsModel) for arch in PRESETS[model]}
    assert found == {arch: "bahdanau" if arch in having else None for arch in found}
    assert having < found.keys()


@pytest.mark.parametrize(
    ("arch", "value", "sentence"),
    [
        ("lstm_kerbs", "bahdanu", "argument --attention: invalid choice: 'bahdanu'"),
        ("gru_lm_kerbs", "luong", "unrecognized arguments: --attention luong"),
        ("bilstm_lm_kerbs_small", "luong", "unrecognized arguments: --attention luong"),
        ("fairseq_lstm_kerbs", "luong", "unrecognized arguments: --attention luong"),
    ],
)
def test_a_wrong_attention_and_one_that_is_not_read_are_refused(
    arch: str, value: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ["--task", "language_modeling"] if "_lm" in arch else []
    given = ["data", "--arch", arch, *task, "--attention", value]
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(options.get_training_parser(), given)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_checkpoint_of_another_attention_is_refused(name: str) -> None:
    saved = make_model(name)
    other = make_model(name, attention="luong")
    for one, two in ((saved, other), (other, saved)):
        with pytest.raises(SystemExit, match=r"--attention .*bahdanau or luong") as ended:
            one.load_state_dict(two.state_dict())
        assert "\n" not in str(ended.value)
    saved.load_state_dict(make_model(name, seed=1).state_dict())
