"""Checkpoints of softmax models as fairseq-train would write them, from untrained models."""

import argparse
import copy
import functools
from pathlib import Path
from typing import Any

import torch
from fairseq import models, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (registers)
from fairseq_kerbs.checkpoints import building, reading

WORDS, SOURCE_WORDS = 31, 27
TRANSLATION = "--task translation --source-lang de --target-lang en"
LANGUAGE_MODEL = "--task language_modeling --tokens-per-sample 40"
TINY_LSTM = (
    "--encoder-embed-dim 10 --decoder-embed-dim 12 --decoder-out-embed-dim 12 "
    "--encoder-hidden-size 8 --decoder-hidden-size 14"
)
_LM = {"embed-dim": 16, "ffn-embed-dim": 24, "layers": 2, "attention-heads": 2}
TINY_LM = " ".join(f"--decoder-{name} {size}" for name, size in _LM.items())
TINY = f"{TINY_LM} {TINY_LM.replace('decoder', 'encoder')}"
TINY_LSTM_LM = "--decoder-embed-dim 12 --decoder-out-embed-dim 12 --decoder-hidden-size 14"
TIED = "--share-decoder-input-output-embed"
CASES = {
    "transformer": f"{TRANSLATION} --arch transformer {TINY}",
    "transformer_tied": f"{TRANSLATION} --arch transformer_wmt_en_de {TIED} {TINY} "
    "--encoder-normalize-before --decoder-normalize-before --decoder-learned-pos "
    "--layernorm-embedding --no-scale-embedding --activation-fn gelu",
    "transformer_shared": f"{TRANSLATION} --arch transformer --share-all-embeddings {TINY}",
    "transformer_output": f"{TRANSLATION} --arch transformer --decoder-output-dim 20 {TINY}",
    "transformer_lm": f"{LANGUAGE_MODEL} --arch transformer_lm {TINY_LM} --decoder-output-dim 8",
    "transformer_lm_tied": f"{LANGUAGE_MODEL} --arch transformer_lm_gpt {TIED} {TINY_LM} "
    "--decoder-input-dim 8 --decoder-output-dim 8 --optimizer adafactor --weight-decay 0.1",
    "lstm": f"{TRANSLATION} --arch lstm {TINY_LSTM}",
    "lstm_tied": f"{TRANSLATION} --arch lstm {TIED} {TINY_LSTM} --encoder-bidirectional "
    "--encoder-layers 2 --decoder-layers 2",
    "lstm_no_attention": f"{TRANSLATION} --arch lstm --decoder-attention 0 {TINY_LSTM} "
    "--decoder-out-embed-dim 14",
    "lstm_lm": f"{LANGUAGE_MODEL} --arch lstm_lm --residuals --decoder-layers 2 {TINY_LSTM_LM}",
    "lstm_lm_tied": f"{LANGUAGE_MODEL} --arch lstm_lm {TIED} {TINY_LSTM_LM}",
    "gru_kerbs": f"{TRANSLATION} --arch gru_kerbs --output-layer softmax --hidden-size 12 "
    "--embed-dim 8",
    "transformer_kerbs": f"{TRANSLATION} --arch transformer_kerbs_small --output-layer softmax "
    f"--sense-bias {TINY}",
}


def arguments(flags: str) -> Any:
    """What fairseq-train makes of flags."""
    command = ["data", "--optimizer", "adam", "--lr", "0.002", "--dropout", "0", *flags.split()]
    return options.parse_args_and_arch(options.get_training_parser(), command)


@functools.cache
def _configured(flags: str) -> dict[str, Any]:
    config = convert_namespace_to_omegaconf(arguments(flags))
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True)


def settings(flags: str) -> dict[str, Any]:
    """All settings as they are in a checkpoint."""
    args = arguments(flags)
    if args.arch.startswith("transformer_lm"):  # the only ones that are not a plain namespace
        return _configured(flags)
    task = LANGUAGE_MODEL if "language" in flags else TRANSLATION
    cloze = "--self-target" if "--self-target" in flags else ""
    plain = _configured(f"{task} --arch lstm {cloze}")
    return plain | {"model": argparse.Namespace(**vars(args) | {"_name": args.arch})}


def building_task(args: Any) -> Any:
    """A task with dictionaries of made-up words, for a model with such flags."""
    targets = ["self" if getattr(args, "self_target", False) else "future"]
    one = args.task == "language_modeling" or getattr(args, "share_all_embeddings", False)
    return building.placeholder_task(WORDS if one else SOURCE_WORDS, WORDS, targets)


def write_softmax(path: Any, flags: str) -> Any:
    """Write a checkpoint whose parameters are all random; the model, in evaluation mode."""
    args = arguments(flags)
    torch.manual_seed(3)
    model = models.build_model(copy.copy(args), building_task(args))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    history: Any = [{"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam"}]
    history[0] |= {"num_updates": 7, "lr_scheduler_state": {}}
    content = {"args": None, "cfg": settings(flags), "model": dict(model.state_dict())}
    progress: Any = {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}}
    content |= {"optimizer_history": history, "extra_state": progress}
    content |= {"last_optimizer_state": {"state": {0: torch.zeros(1000)}}}
    torch.save(content, path)
    return model.eval()


def load(path: Path, flags: str = "") -> Any:
    """Model of a checkpoint, built by fairseq from its own settings or from other flags."""
    checkpoint = reading.open_checkpoint(path)
    state = checkpoint.state
    own = checkpoint.config.model
    joined = len(state["model"].get("encoder.embed_tokens.weight", ())) in (0, WORDS)
    task = building.placeholder_task(WORDS if joined else SOURCE_WORDS, WORDS, ["future"])
    model = models.build_model(arguments(flags) if flags else own, task)
    model.load_state_dict(state["model"], strict=True, model_cfg=own)
    return model.eval()
