"""Checkpoints of fairseq-train: reading, building, contexts of their models, conversion.

- :mod:`.reading` reads a file without executing code from it.
- :mod:`.building` builds model, task and output layer.
- :mod:`.contexts` runs a model over a split by teacher forcing.
- :mod:`.conversion` gives a softmax model senses, and :mod:`.finetuning` has the flags to train on.
"""

from fairseq_kerbs.checkpoints.building import load_layer, load_model_and_task, model_layer
from fairseq_kerbs.checkpoints.reading import read_checkpoint

__all__ = ["load_layer", "load_model_and_task", "model_layer", "read_checkpoint"]
