"""Time the translation of a test set by several models, in turn, in one process.

    python results/benchmarks/translation_time.py REPETITIONS DATA MODEL...

Beam 5, batches of 64 sentences, on a GPU if there is one. Ratios are to the first model.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from omegaconf import OmegaConf

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (both register)

BEAM = OmegaConf.create({"beam": 5, "max_len_a": 0, "max_len_b": 200, "min_len": 1, "lenpen": 1.0})


def load(path: str, data: str, cuda: bool) -> Any:
    """Models, generator, task and batches."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], {"data": data})
    task.load_dataset("test")
    for model in models:
        model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
        model.to("cuda" if cuda else "cpu")
        model.eval()  # returns None after make_generation_fast_
    iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=64)
    batches = list(iterator.next_epoch_itr(shuffle=False))
    batches = [utils.move_to_cuda(batch) for batch in batches] if cuda else batches
    return models, task.build_generator(models, BEAM), task, batches


def translate(models: Any, generator: Any, task: Any, batches: Any) -> float:
    """Seconds for the test set."""
    start = time.perf_counter()
    for batch in batches:
        # waits for the GPU, as the generator compares scores after each word
        task.inference_step(generator, models, batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    repetitions, data, *paths = sys.argv[1:]
    jobs = {path: load(path, data, torch.cuda.is_available()) for path in paths}
    seconds: dict[str, list[float]] = {path: [] for path in paths}
    for repetition in range(int(repetitions) + 1):  # the first one warms up
        for path, job in jobs.items():
            took = translate(*job)
            seconds[path] += [took] if repetition else []
    for path, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds[paths[0]]))
        spread = f"{median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
        print(f"{path}\tmedian {median(taken):.2f} s\tratio {spread}", *(f"{t:.3f}" for t in taken))
