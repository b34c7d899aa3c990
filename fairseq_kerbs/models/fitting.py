"""Whether a checkpoint holds the output layer of the model that is to load it."""

from __future__ import annotations

from torch import Tensor

from fairseq_kerbs.models.config import fail
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import ADDED_STATISTICS, damaged_statistic


def check_checkpoint(layer: OutputLayer, state_dict: dict[str, Tensor], prefix: str) -> None:
    """End with one sentence where a checkpoint holds another output layer than the model.

    Args:
        layer: the model's layer.
        state_dict: parameters and buffers of the checkpoint.
        prefix: name of the layer in it, with a final dot.
    """
    layer.drop_unused(state_dict, prefix)
    expected = layer.state_dict()
    found = {key[len(prefix) :] for key in state_dict if key.startswith(prefix)}
    if not found:
        fail(f"the checkpoint has no '{prefix}weight': it is no model of fairseq_kerbs.")
    # statistics of the interval that this version has added, or that --new-sense asks for
    optional = {f"inventory.{name}" for name in ADDED_STATISTICS}
    if found - optional != set(expected) - optional:
        fail(
            "the checkpoint was trained with another --output-layer, --kernel or "
            "--mixture-kernels than this model "
            f"(it has {', '.join(sorted(found))})."
        )
    senses = len(state_dict[f"{prefix}weight"])
    words = len(state_dict.get(f"{prefix}inventory.log_prob", state_dict[f"{prefix}weight"]))
    if words != layer.vocab_size:
        fail(
            f"the checkpoint has a target dictionary of {words} words, the data has one of "
            f"{layer.vocab_size}: use the data that the model was trained on."
        )
    if senses != layer.total_senses:
        fail(
            f"the checkpoint has {senses} senses, this model {layer.total_senses}: give the "
            f"--total-senses that it was trained with ({senses / words:.6g})."
        )
    size = state_dict[f"{prefix}weight"].shape[1]
    if size != layer.embed_dim:
        bias = abs(size - layer.embed_dim) == 1
        cause = " and --sense-bias as" if bias else ""
        fail(
            f"the checkpoint has sense embeddings of size {size}, this model of size "
            f"{layer.embed_dim}: give the embedding size{cause} of the checkpoint."
        )
    if "mixing.weight" in expected:
        components, own = len(state_dict[f"{prefix}mixing.weight"]), len(expected["mixing.weight"])
        if components != own:
            fail(
                f"the checkpoint is a mixture of {components} components, this model one of {own}: "
                "give the --mixture-components or --mixture-kernels that it was trained with."
            )
    if "inventory.word_of_sense" not in expected:
        return
    damaged = damaged_statistic(state_dict, f"{prefix}inventory.")
    if damaged:
        fail(
            f"{damaged} of the checkpoint: the file is damaged, or its training had diverged; take "
            "an earlier checkpoint of that training."
        )
    counts = state_dict[f"{prefix}inventory.word_of_sense"].bincount(minlength=words)
    if int(counts.min()) < 1:
        fail(
            f"word {int(counts.argmin())} of the checkpoint has no sense: the file is damaged; "
            "take another checkpoint of that training."
        )
    most = int(counts.max())
    if most > layer.max_senses:
        fail(
            f"a word of the checkpoint has {most} senses, this model allows "
            f"{layer.max_senses}: give --max-senses {most} or more."
        )
