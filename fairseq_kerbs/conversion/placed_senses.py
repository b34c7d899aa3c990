"""Senses of a softmax model on the clusters of its contexts, from its checkpoint and its data."""

from __future__ import annotations

import argparse
import time
from typing import Any

from fairseq_kerbs.analysis.teacher_forcing import count_words, loss_in_bits, sample_contexts
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.clusters import ContextSample, place_senses
from fairseq_kerbs.conversion.model import Converted, SoftmaxModel
from fairseq_kerbs.utils.errors import UserError


class PlacedSenses:
    """A placement, and what is worth saying of it.

    Args:
        source: the model.
        args: flags of ``fairseq-kerbs convert``.
        dictionary: fairseq's target dictionary.

    Raises what :func:`load_model_and_task` and :func:`batches` do; a UserError if ``--memory`` is
    too little.
    """

    def __init__(self, source: SoftmaxModel, args: argparse.Namespace, dictionary: Any) -> None:
        started = time.perf_counter()
        model, self._task = load_model_and_task(
            source.checkpoint, args.data, trust=args.trust_checkpoint, any_model=True
        )
        self._valid = args.valid_split
        self._before = loss_in_bits(model, self._task, self._valid, "--valid-split")
        counts = count_words(self._task, args.split)
        words, dim = source.weight.shape
        memory = int(args.memory * 1e9)
        try:
            self._sample = ContextSample(counts, dim, args.contexts, memory, dictionary.nspecial)
        except ValueError as error:
            raise UserError(f"--memory {args.memory}: {error}") from None
        sample_contexts(model, self._task, args.split, self._sample)
        collected = time.perf_counter()
        total = round(args.total_senses * words)
        self.placement = place_senses(self._sample, total, args.max_senses, args.gap)
        self._seconds = collected - started, time.perf_counter() - collected

    def summary(self, converted: Converted) -> list[str]:
        """What was placed, in lines, with the loss before and after."""
        counts = converted.plan.word_of_sense.bincount().bincount()[1:].tolist()
        words = ", ".join(f"{n} with {senses}" for senses, n in enumerate(counts, start=1))
        seen, kept = int(self._sample.seen.sum()), self._sample.kept
        after = loss_in_bits(converted.model, self._task, self._valid)
        size = kept.numel() * kept.element_size() / 1e6
        return [
            f"words by number of senses: {words}",
            f"contexts: {seen} seen, {len(kept)} kept ({size:.0f} MB), in "
            f"{self._seconds[0]:.0f} s; clusters: {self._seconds[1]:.0f} s",
            f"loss of split {self._valid}: {self._before:.3f} bits a token before, "
            f"{after:.3f} after",
        ]
