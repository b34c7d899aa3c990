"""Where does a lower loss come from: teacher-forced predictions by how probable the word before was.

    python results/tables/previous_words.py DATA CHECKPOINT OTHER

Words of the validation data in bins of the probability that a model gave the reference's previous
word: first the one model's, then the other's. In each bin the number of words, how often the target
is the most probable word, and the loss in bits, for both models. DATA is the folder of binarized data.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from fairseq_kerbs.checkpoints import load_model_and_task

BOUNDS = (0.0, 0.01, 0.1, 0.5, 0.9, 1.01)


@torch.no_grad()
def predictions(data: Path, checkpoint: Path) -> dict[int, Tensor]:
    """Of each sentence, by its number: nll in bits, and whether the target is the most probable
    word, [2, len]."""
    model, task = load_model_and_task(checkpoint, data)
    task.load_dataset("valid")
    found = {}
    batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=64)
    for batch in batches.next_epoch_itr(shuffle=False):
        log_probs = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True).float()
        target = batch["target"]
        bits = -log_probs.gather(2, target.unsqueeze(2)).squeeze(2) / math.log(2)
        both = torch.stack([bits, (log_probs.argmax(2) == target).float()])
        for row, number in enumerate(batch["id"].tolist()):
            found[number] = both[:, row, target[row] != task.target_dictionary.pad()]
    return found


def main(data: Path, checkpoints: list[Path]) -> None:
    """Print a line for each bin."""
    one, other = (predictions(data, checkpoint) for checkpoint in checkpoints)
    words = torch.cat([torch.stack([one[n], other[n]])[..., 1:] for n in one], -1)
    before = torch.cat([torch.stack([one[n], other[n]])[:, 0, :-1] for n in one], -1)
    for model, name in enumerate(("the first", "the second")):
        for low, high in zip(BOUNDS, BOUNDS[1:]):
            probability = before[model].neg().exp2()
            chosen = words[..., (probability >= low) & (probability < high)]
            (bits, right), (other_bits, other_right) = chosen.mean(-1).tolist()
            print(
                f"P of the word before, by {name} model, from {low} to {min(high, 1.0)}: "
                f"{chosen.shape[-1]} words; right {right:.1%}, {other_right:.1%}; "
                f"bits {bits:.3f}, {other_bits:.3f} ({other_bits - bits:+.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
