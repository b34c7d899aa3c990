"""The sample of contexts."""

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.reallocation.context_sample import ContextSample
from tests.helpers.contexts import blobs


def test_a_sample_with_room_keeps_everything() -> None:
    contexts = {word: blobs(word, (30, 30)) for word in (4, 7)}
    contexts[4][0] = 1e6
    contexts[7][0] = -1e6  # too large for float16
    sample = ContextSample(torch.full((9,), 60), 5, most=60, memory=10**6, special=4)
    words = torch.tensor([4, 7]).repeat(60)
    sample.add(words[:50], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[:50])
    sample.add(words[50:], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[50:])
    for word, right in contexts.items():
        right = right.clamp(-65504, 65504)
        torch.testing.assert_close(sample.contexts(word), right, rtol=1e-3, atol=1e-2)
    assert len(sample.contexts(5)) == 0
    assert len(sample.state()["kept"]) == 120


def test_every_context_is_as_likely_to_be_kept() -> None:
    """Of 200 numbers 50 stay; their mean over many samples is that of all."""
    numbers = torch.arange(200.0).unsqueeze(1)
    hits = torch.zeros(200)

    def draw(seed: int) -> Tensor:
        sample = ContextSample(torch.tensor([200]), 1, 50, 10**6, seed=seed)
        for part in numbers.split(33):
            sample.add(torch.zeros(len(part), dtype=torch.long), part)
        return sample.contexts(0).long().squeeze(1)

    for seed in range(300):
        kept = draw(seed)
        hits[kept] += 1
        assert len(kept.unique()) == 50
    assert torch.equal(draw(299), kept)
    # each is kept with probability ¼: 75 ± 7.5 of 300
    assert hits.view(10, 20).mean(1).sub(75).abs().max() < 6


def test_memory_is_shared_and_bounded() -> None:
    counts = torch.tensor([900, 900, 900, 900, 40, 39, 5000, 2000])
    for rows, sizes in ((1001, [40, 0, 480, 480]), (120, [40, 0, 40, 40])):
        sample = ContextSample(counts, dim=8, most=600, memory=2 * 8 * rows, special=4)
        assert sample.size.tolist() == [0] * 4 + sizes
        assert sample.kept.nbytes <= 2 * 8 * rows
    with pytest.raises(ValueError, match=r"^1.9e-06 GB .* 3 words need 1.9e-06 GB for 40 contexts"):
        ContextSample(counts, dim=8, most=600, memory=2 * 8 * 119, special=4)
