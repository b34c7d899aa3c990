"""The KerBS layer: first values, decoding after a change, moves, trainings of the README."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fairseq_kerbs
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, Clusters, Moves, Policy, SenseState
from tests.helpers.cli import Capsys, Patch


def example(number: int, capsys: Capsys) -> tuple[dict[str, Any], str, list[int]]:
    """What an example of docs/inside.md made and printed, and how many senses it moved."""
    text = (Path(fairseq_kerbs.__file__).parents[1] / "docs" / "inside.md").read_text(
        encoding="utf-8"
    )
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    torch.manual_seed(1)
    exec(blocks[0].split("\n\n")[0], names)
    exec(blocks[number], names)
    printed = capsys.readouterr().out
    return names, printed, [int(number) for number in re.findall(r"(\d+) senses moved", printed)]


def test_the_training_of_the_page_runs(capsys: Capsys) -> None:
    names, _, moved = example(0, capsys)
    assert 2.1 < names["perplexity"] < 2.6  # 100 by chance, 2.18 by the noise alone
    assert 0.88 < names["accuracy"] < 0.92  # 0.9 are no noise
    # reallocation began a new interval
    assert not names["layer"].inventory.interval_count.any()
    assert len(moved) == 5
    assert moved[0] > moved[-1]


def test_the_block_of_the_readme_runs() -> None:
    """As it is printed there, and with the sizes that its comments and the text say."""
    page = (Path(fairseq_kerbs.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    log_probs = names["log_probs"]
    assert log_probs.shape == (64, 10_000)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(64))
    each = log_probs.gather(1, names["targets"].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(names["target_log_probs"], each)
    torch.testing.assert_close(names["loss"], -each.mean())
    assert all(p.grad is not None for p in names["layer"].parameters())


def test_the_hugging_face_trainer_runs(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.chdir(tmp_path)
    names, printed, moved = example(1, capsys)
    model = names["model"]
    ids = names["ids"]
    assert "tensor([[ 5,  8, 11, 14, 17, 20, 23]])" in printed
    assert len(moved) == 4
    assert sum(moved) > 0
    layer = model.lm_head
    assert layer.usage.std() > 0  # statistics were updated
    with torch.no_grad():
        assert model(ids[:64], labels=ids[:64])["loss"] < 0.2  # log 50 = 3.9 by chance
        contexts = model.base_model(ids[:4]).last_hidden_state
        torch.testing.assert_close(model(ids[:4]).logits, layer.log_probs(contexts))


def test_first_values_are_random_with_the_documented_spread() -> None:
    layer = KerbsOutputLayer(256, 1000, 3000)
    assert layer.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert layer.theta.std().item() == pytest.approx(0.1, rel=0.1)
    assert layer.sense_parameters() == [layer.weight, layer.theta]
    released = KerbsOutputLayer(16, 1000, 3000, kernel="kerbs_released")
    assert not released.theta.any()  # θ = e^0 = 1
    assert (released.kernel.theta_of(released.theta) == 1.0).all()
    inner = KerbsOutputLayer(8, 30, 75, kernel="lin")
    assert inner.sense_parameters() == [inner.weight]
    assert not inner.theta.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules(dtype: torch.dtype) -> None:
    layer = KerbsOutputLayer(8, 30, 75).to(dtype)
    wide = KerbsOutputLayer(8, 30, 75).eval()
    h = torch.randn(20, 8, dtype=dtype)
    target = torch.randint(30, (20,))
    layer.nll(h, target)
    assert layer.update_statistics(1e-3) == 20
    wide.load_state_dict(layer.eval().state_dict())
    with torch.no_grad():
        scores = layer.log_probs(h)
        right = wide.log_probs(h.float())
    assert scores.dtype == layer.usage.dtype == torch.float32
    assert (scores.exp().sum(-1) - 1).abs().max() <= 1e-5
    torch.testing.assert_close(scores, right, rtol=0.02, atol=0.05)


def test_scores_follow_every_change_of_the_senses() -> None:
    """What is prepared for decoding must not outlive the weights it was prepared from."""
    layer = KerbsOutputLayer(6, 12, 30).eval()
    h = torch.randn(3, 2, 6)

    def posterior() -> Tensor:
        found = layer.look_up(torch.arange(6).view(3, 2))
        with torch.no_grad():
            fast = layer.posterior(found, h)
        torch.testing.assert_close(fast, layer.posterior(found, h).detach(), rtol=1e-4, atol=1e-5)
        return fast

    def scores() -> Tensor:
        posterior()  # from what is left of earlier scores, if it still holds
        with torch.no_grad():
            fast = layer.log_probs(h)
        posterior()
        torch.testing.assert_close(fast, layer.log_probs(h).detach(), rtol=1e-5, atol=1e-5)
        return fast

    before = scores()
    assert torch.equal(scores(), before)  # from what was prepared
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(layer.log_probs(h), before)
    assert torch.equal(scores(), before)  # what is prepared is of the dtype of products
    with torch.no_grad():
        layer.weight.mul_(1.5)
    assert not torch.allclose(scores(), before)
    with torch.no_grad():
        layer.theta.add_(1.0)
    scores()
    layer.inventory.move(torch.tensor([29]), torch.tensor([0]))
    scores()
    layer.load_state_dict({k: v * 2 if "weight" in k else v for k, v in layer.state_dict().items()})
    scores()
    for scored_while_training in (False, True):
        layer.train()
        layer.weight.data.mul_(0.5)  # as optimizers do, unseen by version counters
        if scored_while_training:
            scores()
        layer.eval()
        scores()
    h = h.double()
    scores()
    layer.double()
    scores()


def test_embeddings_that_a_policy_computes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = KerbsOutputLayer(4, 3, 5, max_senses=3)
    giver = int(layer.word_of_sense[4])
    sense, source, word = torch.tensor([[4], [giver], [(giver + 1) % 3]])
    moves = Moves(sense, source, word, torch.tensor([0.1]), vectors=torch.full((1, 4), 7.0))

    @dataclass(frozen=True)
    class Own(Policy):
        name = "own"

        def propose(self, senses: SenseState) -> Moves:
            return moves

    monkeypatch.setitem(POLICIES, "own", Own)
    layer.reallocate("own")
    assert layer.weight[4].tolist() == [7.0] * 4


def test_senses_of_a_word_begin_apart_and_of_equal_length() -> None:
    layer = KerbsOutputLayer(256, 40, 120)
    senses, mask = layer.table[:2]
    first = layer.weight[senses[:, 0]].unsqueeze(1)  # [V, 1, d]
    others = torch.cosine_similarity(layer.weight[senses], first, dim=-1)[:, 1:][mask[:, 1:]]
    assert float(others.abs().max()) < 0.4
    lengths = layer.weight.detach().norm(dim=1)
    assert float(lengths[:40].mean()) == pytest.approx(1.0, rel=0.05)
    assert float(lengths[40:].mean()) == pytest.approx(1.0, rel=0.05)


def test_a_policy_is_named_or_given_and_an_unknown_one_is_refused() -> None:
    assert KerbsOutputLayer(4, 3, 6).policy is None
    given = Clusters(cluster_gap=3.0)
    assert KerbsOutputLayer(4, 3, 6, biased=True, policy=given).policy is given
    with pytest.raises(ValueError, match=r"`policy`.*'near'.*paper, released, clusters"):
        KerbsOutputLayer(8, 4, 8, policy="near")
    layer = KerbsOutputLayer(4, 3, 6, biased=True)
    layer.start_sampling()
    layer.reallocate("paper")
    assert layer.sample is not None  # which this policy has not read


@pytest.mark.parametrize(
    ("counts", "given"),
    [
        (torch.ones(30), r"torch.float32 \[30\]"),
        (torch.ones(29, dtype=torch.long), r"torch.int64 \[29\]"),
        (torch.ones(31, dtype=torch.long), r"torch.int64 \[31\]"),
        ([1] * 30, "<class 'list'>"),
    ],
)
def test_wrong_frequencies_are_refused_before_the_training(counts: Any, given: str) -> None:
    layer = KerbsOutputLayer(8, 30, 75)
    with pytest.raises(ValueError, match=rf"`counts` is {given}.*must be torch.int64 \[30\]"):
        layer.start_sampling(counts)
    assert layer.sample is None


def test_a_layer_without_memory_gets_what_its_policy_begins_with() -> None:
    """Modules are told in this order to begin anew."""
    with torch.device("meta"):
        layer = KerbsOutputLayer(8, 30, 75, policy="clusters", biased=True)
    layer.reset_parameters()  # nothing to do
    layer.to_empty(device="cpu")
    for module in layer.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    assert layer.senses_per_word().tolist() == [1] * 30  # the other senses are spare
    spare = ~layer.in_use()
    assert spare.sum() == 45
    assert not layer.usage[spare].any()


def test_a_layer_begins_anew() -> None:
    layer = KerbsOutputLayer(8, 30, 75)
    before = layer.word_of_sense.clone()
    layer.inventory.usage.zero_()
    with torch.no_grad():
        layer.weight.zero_()
        layer.theta.zero_()
    layer.reset_parameters()
    assert not torch.equal(layer.word_of_sense, before)
    assert layer.usage.sum().item() == pytest.approx(1.0)
    assert layer.weight.std().item() == pytest.approx(8**-0.5, rel=0.2)
    assert layer.theta.std().item() == pytest.approx(0.1, rel=0.5)
