"""Where a training step's and a translation's time goes: wall time of the functions that do it.

usage: python parts.py FILE

Contestants take turns, five times; seconds are medians. Likelihood: 2,048 tokens, with compiled
passes and without; step: 4,096 tokens; decode: 16 sentences, beam 5, 25 steps. Products and passes
are within "likelihood" and "scores", which are within "decoder"; the contestant "products" is the
three products alone.
"""

import functools
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from fairseq.sequence_generator import EnsembleModel
from fairseq.trainer import Trainer

from fairseq_kerbs.benchmarks import likelihood, translation
from fairseq_kerbs.benchmarks.memory import quiet
from fairseq_kerbs.likelihood import chunked
from fairseq_kerbs.likelihood.backends import cpu, eager
from fairseq_kerbs.models.recurrent import SteppingDecoder
from fairseq_kerbs.models.transformer import KerbsTransformerDecoder
from fairseq_kerbs.output_layers.base import OutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.utils.machine import describe_machine, describe_versions

REPETITIONS = 5
LIKELIHOOD = ("kerbs", "kerbs-trained", "kerbs-smoothed")
STEP = ("stock", "softmax", "kerbs", "kerbs-prior", "softmax-lstm", "kerbs-lstm")
DECODE = (
    "stock",
    "softmax",
    "kerbs",
    "kerbs-one-pass",
    "kerbs-prior",
    "softmax-lstm",
    "kerbs-lstm",
)
SIZES = {"dim": 288, "vocab": 10_000, "senses_per_word": 3.0, "ffn": 507, "layers": 5, "heads": 2}

spent: defaultdict[str, float] = defaultdict(float)
active: set[str] = set()


def timed(owner, name, part, only=lambda: True):
    """Add the time of a method to a part; of a method within one of the same part only once."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def run(*args, **kwargs):
        if part in active or not only():
            return method(*args, **kwargs)
        active.add(part)
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - start
            active.discard(part)

    setattr(owner, name, run)


def measure(workloads):
    rows = {name: [] for name in workloads}
    for repetition in range(REPETITIONS + 1):  # the first is not counted
        for name, workload in workloads.items():
            os.environ["FAIRSEQ_KERBS_FUSED"] = "0" if name.endswith("-torch") else "1"
            workload.reset()
            spent.clear()
            start = time.perf_counter()
            workload.run()
            if repetition:
                rows[name].append({"whole": time.perf_counter() - start, **spent})
    return {
        name: {part: round(statistics.median(row[part] for row in found), 4) for part in found[0]}
        for name, found in rows.items()
    }


quiet()
torch.set_num_threads(2)
how = {"dtype": "float32", "device": "cpu", "seed": 1, **SIZES}
machine = describe_machine("cpu")
without_gradient = lambda: not torch.is_grad_enabled()  # noqa: E731
for backend in (cpu._CpuBackend, eager.Backend):
    timed(backend, "forward", "passes, forward")
    timed(backend, "backward", "passes, backward")
timed(KerbsTransformerDecoder, "_one_pass", "first pass of the composition", without_gradient)
timed(SteppingDecoder, "run", "steps of the decoder, forward")
timed(chunked.Evaluation, "run", "likelihood with its gradients")
timed(chunked.Products, "products", "products X")
timed(chunked.Gradients, "add", "products dh and dW")
timed(SenseInventory, "record", "statistics")
timed(SenseInventory, "update", "statistics")
timed(Trainer, "clip_grad_norm", "clipping")
inputs = {name: SIZES[name] for name in ("dim", "vocab", "senses_per_word")}
inputs |= {"tokens": 2048, "dtype": "float32", "device": "cpu", "seed": 1}
losses = {name: likelihood.workload(name, **inputs) for name in LIKELIHOOD}
losses |= {f"{name}-torch": losses[name] for name in LIKELIHOOD}
seconds = {
    "likelihood": measure({"products": likelihood.products_workload(**inputs), **losses}),
    "step": measure({name: translation.step_workload(name, tokens=4096, **how) for name in STEP}),
}
timed(EnsembleModel, "forward_encoder", "encoder")
timed(EnsembleModel, "forward_decoder", "decoder")
timed(ComposedEmbedding, "forward", "input embeddings")
timed(ComposedEmbedding, "compose", "input embeddings")
timed(ComposedEmbedding, "embed_streams", "input embeddings")
timed(OutputLayer, "log_probs", "scores of all words")
timed(EnsembleModel, "reorder_incremental_state", "beams put in order")
seconds["decode"] = measure(
    {name: translation.decode_workload(name, batch=16, beam=5, steps=25, **how) for name in DECODE}
)
result = {"seconds": seconds, "sizes": SIZES, "machine": machine, "versions": describe_versions()}
Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
for kind, rows in seconds.items():
    for name, row in rows.items():
        print(kind, name, row)
