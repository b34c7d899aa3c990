"""Time and error of ``--gradient-filter`` on a trained model.

usage: python gradient_filter.py CHECKPOINT DATA FILE

Context vectors and targets: the first 2,048 tokens of the validation data. Loss and gradients with
each filter take turns with the exact ones; errors are |g - exact| / |exact| of the whole gradient.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import fairseq  # noqa: F401  (before the plugin, so that it registers its models)
import torch

from fairseq_kerbs.analysis.occurrences import batches
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.utils.machine import describe_machine, describe_versions

TOKENS, REPETITIONS, FILTERS = 2048, 7, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

torch.set_num_threads(1)
checkpoint, data, file = map(Path, sys.argv[1:])
model, task = load_model_and_task(checkpoint, data)
layer, parts = model.decoder.output, []
with torch.no_grad():
    for batch in batches(task, "valid"):
        real = batch["target"] != task.target_dictionary.pad()
        parts.append(
            (model(**batch["net_input"])[0].as_subclass(torch.Tensor)[real], batch["target"][real])
        )
        if sum(len(targets) for _, targets in parts) >= TOKENS:
            break
h, target = (torch.cat(part)[:TOKENS] for part in zip(*parts, strict=True))


def run(gradient_filter: float) -> tuple[float, list[torch.Tensor]]:
    leaves = [value.detach().clone().requires_grad_() for value in (h, layer.weight, layer.theta)]
    start = time.perf_counter()
    loss = kerbs_nll(*leaves, layer.word_of_sense, target, gradient_filter=gradient_filter)
    loss.mean().backward()
    return time.perf_counter() - start, [leaf.grad for leaf in leaves]


exact, rows = run(0.0)[1], []
for value in FILTERS:
    pairs = [(run(value), run(0.0)[0]) for _ in range(REPETITIONS)]
    ratios = sorted(one / whole for (one, _), whole in pairs)
    found = pairs[-1][0][1]
    errors = [float((g - e).norm() / e.norm()) for g, e in zip(found, exact, strict=True)]
    left_out = float((found[1] == 0).all(1).float().mean())
    rows.append(
        {
            "filter": value,
            "time_ratio": statistics.median(ratios),
            "ratios": ratios,
            "without_gradient": left_out,
        }
    )
    rows[-1] |= dict(zip(("error_h", "error_w", "error_theta"), errors, strict=True))
    print(rows[-1])
sizes = {
    "tokens": len(h),
    "senses": layer.total_senses,
    "words": layer.vocab_size,
    "dim": h.shape[1],
}
result = {
    "sizes": sizes,
    "rows": rows,
    "machine": describe_machine("cpu"),
    "versions": describe_versions(),
}
file.write_text(json.dumps(result, indent=1) + "\n")
