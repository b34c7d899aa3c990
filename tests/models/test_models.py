"""Models: composition in training and in decoding, beam search, the recursion, padding, flags."""

import argparse
import itertools
import math
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY, lstm
from fairseq.search import DiverseBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, ValidationError
from torch import Tensor, nn

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.models.config import in_flags, user_errors
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import fairseq_fixtures as tiny
from tests.helpers.fairseq_fixtures import (
    ALL_MODELS,
    LANGUAGE_MODELS,
    MODELS,
    make_model,
    make_task,
)

Flags = dict[str, Any]
SEPARATE: Flags = {"input_embedding": "separate", "decoder_out_embed_dim": 9}
DEEP: Flags = {"encoder_layers": 2, "decoder_layers": 2, "encoder_bidirectional": True}
SETTINGS: list[tuple[str, Flags]] = [
    *(("transformer", {"composition_passes": passes}) for passes in (-1, 0)),
    *((name, {"composition": "prior"}) for name in ("transformer", "lstm")),
    *((name, {"output_layer": "softmax"}) for name in ("transformer", "lstm", "fairseq_lstm")),
    *((name, {"sense_bias": True}) for name in ("lstm", "fairseq_lstm")),
    ("transformer", {"kernel": "kerbs_released", "total_senses": 2.0, "composition_passes": -1}),
    ("transformer", {"sense_bias": True, "composition_passes": -1}),
    ("transformer", {"input_embedding": "separate", "decoder_output_dim": 20}),
    ("lstm", {}),
    ("transformer", {"output_layer": "mos"}),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin, log"}),
    *(("gru", flags) for flags in ({}, {"kernel": "lin"})),
    *(("lstm_luong", flags) for flags in ({}, {"sense_bias": True}, {"output_layer": "softmax"})),
    *(("gru_luong", flags) for flags in ({}, {"composition": "prior"})),
    ("fairseq_lstm", {**DEEP, "decoder_out_embed_dim": 14, "decoder_embed_dim": 14}),  # no fc
    ("fairseq_lstm", {"decoder_attention": "0"}),
    ("fairseq_lstm", {"composition": "prior", "encoder_bidirectional": True}),
    ("fairseq_lstm", {**SEPARATE, **DEEP, "sense_bias": True}),
    ("fairseq_lstm_lm", {"residuals": True, "decoder_layers": 2, "sense_bias": True}),
    ("fairseq_lstm_lm", {**SEPARATE, "residuals": True}),
]
LAYERS: list[Flags] = [{"output_layer": "softmax"}, {"output_layer": "mos"}]
LAYERS += [{"composition": "prior"}, {"composition_passes": -1, "sense_bias": True}]
SETTINGS += itertools.product(("transformer_lm", "lstm_lm", "gru_lm"), LAYERS)
LENGTHS = (7, 6, 4)  # fairseq's LSTM wants the longest sentence first


def batch_of(name: str, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Flags:
    if name in LANGUAGE_MODELS:
        return tiny.make_text(lengths, both_sides=name == "bilstm_lm")
    return tiny.make_batch(lengths, **options)


@pytest.mark.parametrize(("name", "flags"), SETTINGS)
def test_teacher_forcing_and_decoding_give_the_same_scores(name: str, flags: Flags) -> None:
    model = make_model(name, **flags)
    for reorder_at in (-1, 3):
        batch = batch_of(name, (6, 6, 6) if reorder_at > 0 else LENGTHS, same_source=reorder_at > 0)
        real = batch["target"].ne(1)
        with torch.no_grad():
            together = tiny.teacher_forced(model, batch)
            single = tiny.step_by_step(model, batch, reorder_at)
        torch.testing.assert_close(single[real], together[real], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(together.exp().sum(-1), torch.ones(together.shape[:2]))


@pytest.mark.parametrize("name", [name for name in ALL_MODELS if name != "bilstm_lm"])
def test_composition_reaches_the_scores(name: str) -> None:
    """The test above would pass as well if the posterior were never used."""
    batch = batch_of(name)
    with torch.no_grad():
        posterior = tiny.teacher_forced(make_model(name), batch)
        prior = tiny.teacher_forced(make_model(name, composition="prior"), batch)
    torch.testing.assert_close(posterior[:, 0], prior[:, 0])  # no previous word at position 0
    assert (posterior[:, 1:] - prior[:, 1:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["transformer", "transformer_lm"])
def test_enough_passes_are_the_sequential_recursion(name: str) -> None:
    """Pass k is exact at the first k positions; decoding step by step is the recursion of Eq. 6."""
    model, batch = make_model(name), batch_of(name)
    real = batch["target"].ne(1)
    with torch.no_grad():
        recursion = tiny.step_by_step(model, batch)
        for passes in (*range(real.shape[1] + 1), -1):
            model.decoder.passes = passes
            scores, near = tiny.teacher_forced(model, batch), real.clone()
            if passes >= 0:
                near[:, passes + 1 :] = False  # position p needs p passes
            torch.testing.assert_close(scores[near], recursion[near], rtol=1e-4, atol=2e-5)
            assert passes != 1 or (scores[real] - recursion[real]).abs().max() > 1e-3


@pytest.mark.parametrize("language", [False, True])
def test_with_one_sense_a_word_it_is_fairseqs_lstm(language: bool) -> None:
    """The same contexts and attention, with all parts of the decoder in use."""
    name = "fairseq_lstm_lm" if language else "fairseq_lstm"
    flags: Flags = {"decoder_layers": 2, "encoder_layers": 2, "residuals": language}
    model, batch = make_model(name, total_senses=1.0, **flags).double(), batch_of(name)
    tokens, encoder_out = tiny.read_tokens(batch), None
    real = tokens.ne(1)
    with torch.no_grad():
        features, extra = model(**batch["net_input"])
        if not language:
            source = batch["net_input"]["src_tokens"]
            encoder_out = model.encoder(source, source.ne(1).sum(1))
        expected, attention = lstm.LSTMDecoder.extract_features(model.decoder, tokens, encoder_out)
    torch.testing.assert_close(features[real], expected[real])
    if not language:
        torch.testing.assert_close(extra["attn"][0][real], attention[real])


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    """Also --left-pad-target: what is trained must be what decoding computes, which has none."""
    model, plain, padded = make_model(name), batch_of(name), batch_of(name)
    if name in MODELS:
        source = padded["net_input"]["src_tokens"]  # too, which fairseq's LSTM refuses
        padded["net_input"]["src_tokens"] = torch.nn.functional.pad(source, (4, 0), value=1)
    tokens = torch.nn.functional.pad(tiny.read_tokens(padded), (0, 7), value=1)
    if side == "left":
        tokens = torch.stack([row.roll(len(row) - int(row.ne(1).sum())) for row in tokens])
    padded["net_input"]["src_tokens" if name in LANGUAGE_MODELS else "prev_output_tokens"] = tokens
    with torch.no_grad():
        expected = tiny.teacher_forced(model, plain)[tiny.read_tokens(plain).ne(1)]
        padded_scores = tiny.teacher_forced(model, padded)[tokens.ne(1)]
    torch.testing.assert_close(padded_scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru", "lstm_luong", "gru_lm"])
def test_dropout_is_retained_where_it_is_asked_for(name: str) -> None:
    model, batch = make_model(name, dropout=0.5), batch_of(name)
    model.make_generation_fast_(retain_dropout=True)
    assert not torch.equal(*(tiny.teacher_forced(model, batch) for _ in range(2)))


@pytest.mark.parametrize("name", list(MODELS))
def test_attention_names_positions_of_the_source_as_given(name: str) -> None:
    """Alignments are read off it; fairseq pads sources on the left."""
    model, batch = make_model(name), tiny.make_batch()
    source = batch["net_input"]["src_tokens"]
    assert source[:, 0].eq(1).any()
    with torch.no_grad():
        _, extra = model(**batch["net_input"])
    attention = extra["attn"][0]  # [batch, len, src_len]
    assert attention[source.eq(1).unsqueeze(1).expand_as(attention)].abs().sum() == 0
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos"])
def test_criterion_trains_all_parameters(name: str, layer: str) -> None:
    flags = SEPARATE | DEEP if name == "fairseq_lstm" and layer == "kerbs" else {}
    model, batch = make_model(name, output_layer=layer, **flags).train(), batch_of(name)
    criterion = KerbsCrossEntropyCriterion(tiny.make_task(model=name), False, label_smoothing=0.0)
    loss, size, log = criterion(model, batch)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    target = batch["target"]
    scores = tiny.teacher_forced(model.eval(), batch).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.detach(), -scores[target.ne(1)].sum().detach())
    assert log["ntokens"] == size == sum(LENGTHS)


# each of these alone is wrong
WRONG_ALONE: list[tuple[str, Flags]] = [
    ("transformer", {"total_senses": 0.5, "sense_decay": 1.0, "composition_passes": -2}),
    ("transformer", {"share_all_embeddings": True, "decoder_output_dim": 8}),
    ("transformer_lm", {"adaptive_input": True, "decoder_output_dim": 8}),
    ("fairseq_lstm", {"total_senses": 4.5, "share_all_embeddings": True}),
    ("fairseq_lstm", {"adaptive_softmax_cutoff": "5,9", "decoder_freeze_embed": True}),
    ("lstm", {"max_senses": 0, "kernel": "rfb", "sense_decay": -0.1, "log_prob_threshold": 0.5}),
    ("lstm", {"reallocation_interval": 0, "hidden_size": 13, "embed_dim": 0, "layers": 0}),
    ("lstm", {"cluster_gap": 0.0, "attention": "bahdanu"}),
    ("gru_lm", {"hidden_size": -1}),
    ("bilstm_lm", {"dropout": 1.5}),
]
WRONG_FLAGS: list[tuple[str, Flags, str]] = [
    *(
        (model, {name: value}, f"--{name.replace('_', '-')}")
        for model, flags in WRONG_ALONE
        for name, value in flags.items()
    ),
    ("bilstm_lm", {"targets": ["future"]}, "--self-target"),
    ("gru_lm", {"targets": ["self"]}, "--self-target"),
    ("transformer_lm", {"targets": ["self", "future"]}, "--self-target"),
    ("lstm_lm", {"targets": None}, "--task language_modeling"),
    ("gru_lm", {"source_dictionary": tiny.dictionary(19)}, "--output-dictionary-size"),
    ("fairseq_lstm", {"decoder_out_embed_dim": 9}, "--decoder-embed-dim"),
    ("fairseq_lstm", {"decoder_layers": 2}, "--encoder-layers"),
    ("fairseq_lstm", {"sense_bias": True, "output_layer": "mos"}, "--sense-bias"),
    ("lstm", {"sense_bias": True, "output_layer": "mos"}, "mos, which has a bias already"),
    ("lstm", {"sense_bias": True, "kernel": "rbf"}, "--sense-bias"),
    ("lstm", {"mixture_tanh_scale": 1.0}, "not read by --output-layer kerbs: leave it out"),
    ("gru_lm", {"output_layer": "softmax", "mixture_tanh_scale": 2.0}, "--output-layer softmax"),
    *(
        ("lstm", {"output_layer": "mos", "mixture_tanh_scale": r}, f"--mixture-tanh-scale is {r}, ")
        for r in (0.0, -1.0, math.inf, math.nan)
    ),
    ("lstm", {"output_layer": "mos", "mixture_components": 0}, "--mixture-components"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,,log"}, "--mixture-kernels"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,rfb"}, "'rfb'"),
    ("lstm", {"kernel": "lin", "kernel_power": 1.0}, "log, pow, pol and not read by --kernel lin"),
    ("lstm", {"kernel": "pow", "kernel_gamma": 1.0}, "--kernel-gamma is for the kernel rbf"),
    ("lstm", {"output_layer": "mos", "kernel_gamma": 1.0}, "--output-layer mos"),
    ("lstm", {"kernel": "pow", "kernel_power": 0.0}, "--kernel-power is 0.0"),
    ("lstm", {"kernel": "log", "kernel_power": math.inf}, "--kernel-power is inf"),
    ("lstm", {"kernel": "pol", "kernel_power": 2.5}, "power is 2.5, but it must be a whole number"),
    ("lstm", {"kernel": "pol", "kernel_power": 0.0}, "power is 0.0, but it must be a whole number"),
    ("lstm", {"kernel": "pol", "kernel_alpha": -1.0}, "--kernel-alpha is -1.0"),
    ("lstm", {"kernel": "pol", "kernel_offset": math.nan}, "--kernel-offset is nan"),
    ("lstm", {"kernel": "rbf", "kernel_gamma": -0.1}, "--kernel-gamma is -0.1"),
    ("lstm", {"kernel": "wav", "kernel_a": 0.0}, "--kernel-a is 0.0"),
    ("lstm", {"kernel": "wav", "kernel_b": math.nan}, "--kernel-b is nan"),
    ("lstm", {"kernel": "mog", "embed_dim": 7}, "--kernel mog halves its vectors, which have 7"),
    ("lstm", {"reallocation_at": [1.5], "max_update": 9}, "--reallocation-at 1.5: give a share"),
    ("lstm", {"reallocation_at": [0.5]}, "shares of --max-update: give that, too"),
]


@pytest.mark.parametrize(("name", "flags", "named"), WRONG_FLAGS)
def test_a_wrong_flag_ends_with_one_sentence(name: str, flags: Flags, named: str) -> None:
    task = tiny.make_task(model=name)
    of_task = {key: flags[key] for key in ("targets", "source_dictionary") if key in flags}
    vars(task).update(of_task)
    with pytest.raises(SystemExit) as ending:
        make_model(name, task, **{key: flags[key] for key in flags.keys() - of_task.keys()})
    assert named in str(ending.value)
    assert "\n" not in str(ending.value)


@pytest.mark.parametrize(
    ("saved", "flags", "named"),
    [
        ({}, {"total_senses": 2.0}, "--total-senses"),
        ({}, {"kernel": "lin"}, "--kernel"),
        ({}, {"output_layer": "softmax"}, "--output-layer"),
        ({}, {"max_senses": 3}, "--max-senses"),
        ({"output_layer": "mos"}, {}, "--output-layer"),
        ({"output_layer": "softmax"}, {"output_layer": "mos"}, "--output-layer"),
        (
            {"output_layer": "mos", "mixture_components": 2},
            {"output_layer": "mixture", "mixture_kernels": "lin,kerbs"},
            "--mixture-kernels",
        ),
        (
            {"output_layer": "mos", "mixture_components": 2},
            {"output_layer": "mixture", "mixture_kernels": "lin,lin"},
            "has bias, mixing.weight",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(saved: Flags, flags: Flags, named: str) -> None:
    for name in ("transformer", "gru_lm"):
        with pytest.raises(SystemExit, match=named):
            make_model(name, **flags).load_state_dict(make_model(name, **saved).state_dict())
        other = make_model(name, tiny.make_task(24, name))
        with pytest.raises(SystemExit, match=r"has 23 words, .* of the data 24"):
            other.load_state_dict(make_model(name).state_dict())


@pytest.mark.parametrize("arch", [arch for presets in PRESETS.values() for arch in presets])
def test_hydra_reads_what_the_flags_of_an_architecture_say(arch: str) -> None:
    """``model=ARCH`` of fairseq-hydra-train is --arch ARCH of fairseq-train, with all its flags."""
    node = ConfigStore.instance().load(f"model/{arch}.yaml").node
    node.total_senses, node.dropout = "2.5", 0.25
    with pytest.raises(ValidationError, match=r"'linear'.*mog"):
        node.kernel = "linear"
    root = OmegaConf.create({"task": {"tokens_per_sample": 99}, "model": node})
    model = OmegaConf.create(OmegaConf.to_container(root, resolve=True, enum_to_str=True)).model
    ARCH_CONFIG_REGISTRY[model.pop("_name")](model)
    task = ["--task", "language_modeling", "--tokens-per-sample", "99"] if "_lm" in arch else []
    given = ["data", "--arch", arch, *task, "--total-senses", "2.5", "--dropout", "0.25"]
    args = vars(options.parse_args_and_arch(options.get_training_parser(), given))
    assert model == {name: args[name] for name in model}
    assert model.get("tokens_per_sample") == (99 if task else None)


@pytest.mark.parametrize("kind", ["mos", "mixture"])
def test_mixtures_are_the_published_ones_unless_flags_say_otherwise(kind: str) -> None:
    for given, scale in ((None, 1.0), (4.0, 4.0), ("0.5", 0.5)):
        flags: Flags = {"output_layer": kind, "mixture_tanh_scale": given}
        if kind == "mixture":
            flags["mixture_kernels"] = "lin"
        layer = make_model("lstm", **flags).decoder.output
        assert layer.tanh_scale == scale
        biases = {name for name, _ in layer.named_parameters() if "bias" in name}
        assert biases == ({"bias", "projections.bias"} if kind == "mos" else set())


CELLS: dict[str, Any] = {"gru_lm": torch.gru_cell, "lstm_lm": torch.lstm_cell}


def recursion(model: Any, row: Tensor, name: str) -> Tensor:
    """Eq. 2 and 6–7 word by word for one text [len], from torch's own cells: [len, d]."""
    decoder = model.decoder
    embed = ComposedEmbedding(decoder.output, 1, decoder.embed_tokens.posterior)
    zeros = torch.zeros(1, 12, dtype=torch.float64)
    states: list[Any] = [(zeros, zeros) if name == "lstm_lm" else zeros] * decoder.rnn.num_layers
    context: Tensor | None = None
    found = []
    for word in row.unsqueeze(1):
        below = embed(word, context)
        for number, weights in enumerate(decoder.rnn.all_weights):
            states[number] = CELLS[name](below, states[number], *weights)
            below = states[number][0] if name == "lstm_lm" else states[number]
        context = decoder.to_context(below)
        found.append(context)
    return torch.cat(found)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(
    "flags", [{}, {"composition": "prior"}, {"output_layer": "softmax"}, {"total_senses": 1.0}]
)
def test_contexts_and_all_gradients_follow_the_recursion(name: str, flags: dict[str, Any]) -> None:
    """In steps where the posterior matters, and in one sequence where it does not."""
    model, batch = make_model(name, **flags).double(), tiny.make_text()
    assert model.decoder.embed_tokens.posterior == (not flags)
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    features, _ = model(source)
    losses = [model.decoder.output.nll(features, target, ignore_index=1)]
    for row, words in enumerate(source):
        length = int(target[row].ne(1).sum())
        expected = recursion(model, words[:length], name)
        torch.testing.assert_close(features[row, :length], expected, rtol=1e-10, atol=1e-10)
        losses.append(model.decoder.output.nll(expected, target[row, :length]))
    parameters = dict(model.named_parameters())
    leaves = [*parameters.values()]
    found, right = (torch.autograd.grad(x, leaves) for x in (losses[0], sum(losses[1:])))
    for key, ours, theirs in zip(parameters, found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=key)


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


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_each_direction_sees_its_side_alone(direction: str) -> None:
    """One direction silenced: what is left has read t − 1 and before, or t + 1 and after."""
    model = make_model("bilstm_lm").double()
    silent = slice(12, None) if direction == "forwards" else slice(12)
    model.decoder.to_context.weight.data[:, silent] = 0.0  # [d, 2 · hidden]
    found = cloze_gradients(model, tiny.make_text((7,))["net_input"]["src_tokens"]) > 0.0
    ones = torch.ones(7, 7, dtype=torch.bool)
    assert torch.equal(found, ones.tril(-1) if direction == "forwards" else ones.triu(1))


def test_a_cloze_model_refuses_to_generate() -> None:
    with pytest.raises(SystemExit, match="cannot generate"):
        make_model("bilstm_lm").decoder(torch.tensor([[2, 5]]), encoder_out=None)


BEGIN, DICTIONARY = torch.tensor([2]), tiny.make_task().target_dictionary


def generate(models: list[Any], batch: Any, **settings: Any) -> list[tuple[int, dict[str, Any]]]:
    """Hypotheses of a beam search, as fairseq-generate runs it, with the rows of their sources."""
    settings = {"beam_size": 4, "max_len_b": 9} | settings
    found = SequenceGenerator(models, DICTIONARY, **settings).generate(models, batch)
    assert all(len(hypotheses) == settings["beam_size"] for hypotheses in found)
    return [(row, each) for row, hypotheses in enumerate(found) for each in hypotheses]


def check_scores(models: list[Any], batch: Any, row: int, hypothesis: Any, heat: float = 1) -> None:
    """Scores of a hypothesis are log-probabilities by teacher forcing, averaged over models."""
    tokens = hypothesis["tokens"]
    source, previous = batch["net_input"]["src_tokens"][[row]], torch.cat([BEGIN, tokens[:-1]])
    probs = []
    for model in models:
        features, extra = model(source, source.ne(1).sum(1), previous.unsqueeze(0))
        probs.append(model.get_normalized_probs((features / heat, extra), log_probs=False))
    expected = torch.stack(probs).mean(0)[0].gather(1, tokens.unsqueeze(1)).log().squeeze(1)
    torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=1e-4, atol=1e-4)


SEARCHES: list[dict[str, Any]] = [
    {"temperature": 1.5, "min_len": 5},
    {"beam_size": 7},
    {"search_strategy": Sampling(DICTIONARY, sampling_topk=5)},
    {"search_strategy": DiverseBeamSearch(DICTIONARY, num_groups=2, diversity_strength=0.5)},
]
BEAMS = [*itertools.product(["transformer"], [-1, 0], SEARCHES)]
BEAMS += [(names, -1, {}) for names in ("lstm", "gru", "lstm_luong", "transformer lstm")]


@pytest.mark.parametrize(("names", "passes", "settings"), BEAMS)
def test_beam_scores_are_those_of_teacher_forcing(names: str, passes: int, settings: Any) -> None:
    """Sentences leave the batch at different steps; two of them are the same sentence."""
    batch = tiny.make_batch(lengths=(6, 6, 4, 7))
    batch["net_input"]["src_tokens"][1] = batch["net_input"]["src_tokens"][0]
    models = [make_model(name, seed=seed) for seed, name in enumerate(names.split())]
    models[0].decoder.passes = passes  # of the transformer
    torch.manual_seed(4)
    lengths = set()
    with torch.no_grad():
        for model in models:  # the end of a sentence has the mean context vector as its sense
            layer, (features, _) = model.decoder.output, model(**batch["net_input"])
            ends, mean = layer.inventory.word_of_sense == 2, features.flatten(0, 1).mean(0)
            layer.weight[ends], layer.theta[ends] = 3.5 * mean / mean.norm(), 0.0
        for row, hypothesis in generate(models, batch, max_len_b=12, **settings):
            lengths.add(len(hypothesis["tokens"]))
            if not isinstance(settings.get("search_strategy"), DiverseBeamSearch):  # has a penalty
                check_scores(models, batch, row, hypothesis, settings.get("temperature", 1.0))
    assert len(lengths) > 1 or names != "transformer"


@pytest.mark.parametrize("passes", [-1, 0])
def test_attention_of_hypotheses_is_that_of_the_last_pass(passes: int) -> None:
    """What --print-alignment reads."""
    model, batch = make_model("transformer", composition_passes=passes), tiny.make_batch()
    with torch.no_grad():
        for row, hypothesis in generate([model], batch):
            source = batch["net_input"]["src_tokens"][[row]]
            previous = torch.cat([BEGIN, hypothesis["tokens"][:-1]]).unsqueeze(0)
            _, extra = model(source, source.ne(1).sum(1), previous)
            # [src_len, len]; fairseq leaves out the last step's of hypotheses cut at max_len
            expected = extra["attn"][0][0].t()
            torch.testing.assert_close(hypothesis["attention"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("`max_senses` is 0.", "--max-senses is 0."),
        ("`decay` and `policy` differ.", "--sense-decay and --reallocation differ."),
        ("`power` of `kernel` is 0.", "--kernel-power of --kernel is 0."),
        ("--total-senses is 0, `h` has no rows.", "--total-senses is 0, `h` has no rows."),
    ],
)
def test_parameters_become_flags_at_the_boundary(sentence: str, expected: str) -> None:
    with pytest.raises(UserError) as ended, user_errors():
        raise ValueError(sentence)
    assert str(ended.value) == expected == in_flags(sentence)
    assert ended.value.code == f"fairseq_kerbs: error: {expected}"  # fairseq's programs end with 1


PUBLISHED = {  # Sections 4 and 5 of the paper, which does not give Q
    "output_layer": "kerbs",
    "kernel": "kerbs",
    "total_senses": 3.0,
    "max_senses": 4,
    "reallocation": "paper",
    "reallocation_interval": 200,
    "reallocation_at": None,
    "sense_allocation": "random",
    "sense_bias": False,
    "composition": "posterior",
}


@pytest.mark.parametrize("arch", [arch for presets in PRESETS.values() for arch in presets])
def test_a_bare_architecture_is_the_method_of_the_paper(arch: str) -> None:
    given = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](given)
    assert {name: getattr(given, name) for name in PUBLISHED} == PUBLISHED
    ours = argparse.Namespace(reallocation="clusters")
    ARCH_CONFIG_REGISTRY[arch](ours)  # asked for by name, it turns on what it needs
    assert ours.sense_bias is True


@pytest.mark.parametrize(
    ("layer", "flag", "value"),
    [
        ("kerbs", "--mixture-components", 5),
        ("mixture", "--mixture-components", 5),
        ("mos", "--mixture-kernels", "lin,pow"),
        ("softmax", "--mixture-kernels", "lin,pow"),
    ],
)
def test_flags_of_another_output_layer_are_refused(layer: str, flag: str, value: Any) -> None:
    name = flag[2:].replace("-", "_")
    with pytest.raises(UserError, match=f"^{flag} is for --output-layer .* not read by .* {layer}"):
        make_model("lstm", output_layer=layer, **{name: value})


@pytest.mark.parametrize(
    ("policy", "flag", "value"),
    [
        ("clusters", "--log-prob-threshold", -50.0),
        ("released", "--log-prob-threshold", -50.0),
        ("paper", "--max-moves", 0.1),
        ("paper", "--cluster-gap", 2.0),
    ],
)
def test_flags_of_another_policy_are_refused(policy: str, flag: str, value: Any) -> None:
    name = flag[2:].replace("-", "_")
    with pytest.raises(UserError, match=f"^{flag} is for --reallocation .*by .* {policy}: leave"):
        make_model("lstm", reallocation=policy, **{name: value})
    make_model("lstm", reallocation="none", **{name: value})  # an ablation
    make_model("lstm", output_layer="softmax", **{name: value})  # a baseline


def test_the_released_policy_brings_its_interval_and_equal_numbers_of_senses() -> None:
    """But not where a flag says otherwise, and not with another output layer."""
    for flags, interval, allocation in (
        ({"reallocation": "released"}, 100, "equal"),
        ({"reallocation": "released", "reallocation_interval": 30}, 30, "equal"),
        ({"reallocation": "released", "sense_allocation": "random"}, 100, "random"),
        ({"reallocation": "released", "output_layer": "softmax"}, 200, "random"),
        ({"reallocation": "paper"}, 200, "random"),
        ({"reallocation": "paper", "sense_allocation": "equal"}, 200, "equal"),
    ):
        given = argparse.Namespace(**flags)
        ARCH_CONFIG_REGISTRY["lstm_kerbs"](given)
        assert given.reallocation_interval == interval, flags
        assert given.sense_allocation == allocation, flags
        task = make_task(model="lstm")
        model = make_model("lstm", task, **flags)
        assert task._kerbs_updates.schedule.interval == interval, flags
        if given.output_layer == "kerbs":
            counts = model.decoder.output.senses_per_word()
            assert (counts.max() == counts.min()) == (allocation == "equal"), flags
