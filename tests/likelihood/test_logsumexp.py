"""logsumexp and the mean over senses, in eager mode."""

import pytest
import torch

from fairseq_kerbs.likelihood.logsumexp import ROWS, logsumexp, logsumexp_and_mean


@pytest.mark.parametrize("senses", [1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_sums_over_blocks_of_64_senses_are_those_over_all(senses: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(senses)
    logits = scale * torch.randn(senses, 5, generator=generator, dtype=torch.float64)
    lse, mean = logsumexp_and_mean(logits)
    torch.testing.assert_close(lse, logits.logsumexp(0))
    torch.testing.assert_close(mean, (logits.softmax(0) * logits).sum(0))
    alone = logsumexp(logits)
    assert torch.equal(alone.lse, lse)
    assert alone.mean is None
    assert ROWS == 64
