"""Architectures, registered with fairseq on import.

``hydra.searchpath=[pkg://fairseq_kerbs]`` has Hydra import this before it looks for ``model=ARCH``.
"""

import warnings
from functools import partial
from typing import Any

from fairseq.models import register_model, register_model_architecture
from hydra.core.config_store import ConfigStore

from fairseq_kerbs.models.base import KerbsModel, check_flags_of_model
from fairseq_kerbs.models.recurrent import (
    FairseqLstmLanguageModel,
    FairseqLstmModel,
    GruKerbsModel,
    LstmKerbsModel,
)
from fairseq_kerbs.models.recurrent_lm import (
    BilstmLanguageModel,
    GruLanguageModel,
    LstmLanguageModel,
)
from fairseq_kerbs.models.transformer import TransformerKerbsModel, TransformerLanguageModel

__all__ = [
    "PRESETS",
    "BilstmLanguageModel",
    "FairseqLstmLanguageModel",
    "FairseqLstmModel",
    "GruKerbsModel",
    "GruLanguageModel",
    "LstmKerbsModel",
    "LstmLanguageModel",
    "TransformerKerbsModel",
    "TransformerLanguageModel",
    "check_flags_of_model",
]

# warnings about fairseq's own calls of torch, which its user cannot change
for _notice in ("'pin_memory'", "`torch.cuda.amp", "Support for mismatched key_padding_mask"):
    warnings.filterwarnings("ignore", message=_notice)

_SIZED = {"dropout": 0.1}


def _transformer(embed: int, ffn: int, layers: int, heads: int, *sides: str) -> dict[str, Any]:
    names = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
    values = dict(zip(names, (embed, ffn, layers, heads)))
    return {f"{side}_{name}": value for side in sides for name, value in values.items()}


_BOTH = ("encoder", "decoder")
_DIALOG = {"hidden_size": 1024, "embed_dim": 512}  # the paper's sizes for dialog
_SMALL_LM = {"hidden_size": 256, "embed_dim": 192}  # half an hour on a CPU
_SMALL_CLOZE = {"hidden_size": 192, "embed_dim": 192}

PRESETS: dict[type[KerbsModel], dict[str, dict[str, Any]]] = {
    TransformerKerbsModel: {
        "transformer_kerbs": {},
        # sizes of Section 5.1
        "transformer_kerbs_iwslt": _transformer(288, 507, 5, 2, *_BOTH) | _SIZED,
        "transformer_kerbs_small": _transformer(128, 256, 3, 4, *_BOTH) | _SIZED,
    },
    TransformerLanguageModel: {
        "transformer_lm_kerbs": {},
        # as fairseq's --arch transformer_lm, which normalizes after each block unless a flag says
        # so (its own larger architectures normalize before, as transformer_lm_kerbs always does)
        "fairseq_transformer_lm_kerbs": {"decoder_normalize_before": False},
        "transformer_lm_kerbs_small": _transformer(128, 512, 3, 4, "decoder"),
    },
    LstmKerbsModel: {"lstm_kerbs": {}, "lstm_kerbs_dialog": _DIALOG},
    GruKerbsModel: {"gru_kerbs": {}, "gru_kerbs_dialog": _DIALOG},
    LstmLanguageModel: {"lstm_lm_kerbs": {}, "lstm_lm_kerbs_small": _SMALL_LM},
    GruLanguageModel: {"gru_lm_kerbs": {}, "gru_lm_kerbs_small": _SMALL_LM},
    BilstmLanguageModel: {"bilstm_lm_kerbs": {}, "bilstm_lm_kerbs_small": _SMALL_CLOZE},
    FairseqLstmModel: {"fairseq_lstm_kerbs": {}},
    FairseqLstmLanguageModel: {"fairseq_lstm_lm_kerbs": {}},
}
"""The architectures of every model, each with the flags that it presets."""

for _model, _presets in PRESETS.items():
    register_model(_model.arch)(_model)
    _flags = _model.hydra_flags()
    for _arch, _sizes in _presets.items():
        ConfigStore.instance().store(_arch, _flags(_name=_arch, **_sizes), "model")
        register_model_architecture(_model.arch, _arch)(partial(_model.fill, sizes=_sizes))
