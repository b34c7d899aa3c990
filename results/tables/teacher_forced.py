"""Teacher-forced predictions on validation data: does a lower loss mean better predictions?

    python results/tables/teacher_forced.py DATA CHECKPOINT...

For each checkpoint: how often the target is the most probable word, and among the five most
probable; the loss in bits, as it is and at the best of eight temperatures; the mean probability of
the end of a sentence. DATA is the folder of binarized data.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

from fairseq_kerbs.checkpoints import load_model_and_task

TEMPERATURES = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1)


@torch.no_grad()
def main(data: Path, checkpoints: list[Path]) -> None:
    """Print a line for each checkpoint."""
    for checkpoint in checkpoints:
        model, task = load_model_and_task(checkpoint, data)
        task.load_dataset("valid")
        batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=64)
        scores, targets = [], []
        for batch in batches.next_epoch_itr(shuffle=False):
            output = model(**batch["net_input"])
            real = batch["target"].ne(task.target_dictionary.pad())
            log_probs = model.get_normalized_probs(output, log_probs=True).float()
            scores.append(log_probs[real])
            targets.append(batch["target"][real])
        log_prob, target = torch.cat(scores), torch.cat(targets).unsqueeze(1)
        ranked = log_prob.topk(5, 1).indices == target
        bits = {
            t: float(-(log_prob / t).log_softmax(1).gather(1, target).mean()) / math.log(2)
            for t in TEMPERATURES
        }
        best = min(bits, key=lambda t: bits[t])
        end = log_prob[:, task.target_dictionary.eos()].exp().mean()
        print(
            f"{checkpoint}: right {ranked[:, 0].float().mean():.2%}, "
            f"among five {ranked.any(1).float().mean():.2%}; bits {bits[1.0]:.3f}, "
            f"{bits[best]:.3f} at temperature {best}; P(end) {end:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
