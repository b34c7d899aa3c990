"""What is edited in fairseq 0.12.2, and why: one entry for each thing that no longer works."""

from __future__ import annotations

from fairseq_build.rules import (
    Edit,
    add_after_assignment,
    add_import,
    assume_false,
    change_line,
    drop_assignments,
    rename,
    set_keyword,
    write,
)
from fairseq_build.sdist import RELEASE

# A local version: `fairseq==0.12.2` is satisfied by it.
VERSION = f"{RELEASE}+kerbs2"

_ALL = "fairseq/**/*.py"

# Python 3.11 refuses dataclass instances without a hash as defaults. fairseq uses configurations as
# defaults and reads them back from the fields, so they stay what they are and get a hash: that of
# their class, since equal configurations are of one class.
_HASH = """
    def __hash__(self) -> int:
        return hash(type(self))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("__hash__") is None:
            cls.__hash__ = FairseqDataclass.__hash__
"""

# hydra announces at each command that version_base="1.1" ends with 1.4, which the wheel's
# requirements exclude: the two notices are switched off.
_QUIET_HYDRA = r"""
    import warnings

    for notice in ("version_base=.1.1. selects", ".* is validated against ConfigStore"):
        warnings.filterwarnings("ignore", message=r"\s*" + notice)
"""

# The Transformer encoder's inference path through torch._transformer_encoder_layer_fwd stops with
# "Mask Type should be defined" on padded batches, and its copies of every layer's weights, never
# trained, stop DistributedDataParallel ("parameters that were not used"). Both go; checkpoints
# written by an unedited fairseq hold the copies.
_LAYERS, _LAYER = "fairseq/modules/transformer_layer.py", "TransformerEncoderLayerBase"
_COPIES = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias",
           "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")  # fmt: skip
_LAYER_FLAGS = ("load_to_BT", "ever_training", "activation_relu_or_gelu", "can_use_fastpath",
                "cfg_checkpoint_activations", "BT_version", "torch_version",
                "int_version")  # fmt: skip
_LOAD_WITHOUT_COPIES = f"""
    for copy in {_COPIES}:
        state_dict.pop(prefix + copy, None)
    super()._load_from_state_dict(
        state_dict,
        prefix,
        local_metadata,
        strict,
        missing_keys,
        unexpected_keys,
        error_msgs,
    )
"""
_ENCODERS = "fairseq/models/transformer/transformer_encoder.py"
_ENCODER = "TransformerEncoderBase.forward_scriptable"
_ENCODER_FLAGS = ("BT_flag", "NT_flag", "BT_version", "NT_version")

# A checkpoint whose architecture is a plugin's ends in an IndexError, because the message that says
# so cannot be formatted, when --user-dir is forgotten.
_UNKNOWN_ARCHITECTURE = """
    if model is None:
        raise SystemExit(
            f"fairseq: error: there is no architecture '{model_type}'; if it belongs to a "
            "plugin, name the plugin's folder with --user-dir"
        )
"""

_COMPOSER, _HYDRA_BASE = "fairseq/dataclass/utils.py", ("version_base", '"1.1"')
_DDP, _ON_CPU = (
    "fairseq/models/distributed_fairseq_model.py",
    "None if device.type == 'cpu' else {}",
)
_GROUP = "# @package _group_"

EDITS = [
    Edit("fairseq/dataclass/configs.py", 1, write, ("FairseqDataclass", "end", _HASH)),
    # torch 2.6 loads plain tensors only, unless told otherwise; checkpoints hold configurations.
    Edit(_ALL, 25, set_keyword, ("torch.load", "weights_only", "False")),
    # Strings of settings ran as programs, those of a checkpoint too: literals are read in place of
    # all evaluation. The build copies the reader from the plugin, which does the same in a fairseq
    # that is not this one; a change of the reader is a new VERSION.
    Edit(_ALL, 52, rename, ("eval", "read_literal")),
    Edit(_ALL, 27, add_import, ("read_literal", "fairseq.literals")),
    # numpy 1.24 and 2.0 took these names away.
    Edit(_ALL, 2, rename, ("np.compat.long", "np.int64")),
    Edit(_ALL, 1, rename, ("np.long", "np.int64")),
    Edit(_ALL, 1, rename, ("np.int", "np.int64")),
    Edit(_ALL, 1, rename, ("np.float", "float")),
    # hydra 1.3 has neither `experimental` nor `strict`. version_base="1.1" keeps what fairseq
    # needs: configurations are checked against the schema of the same name, and
    # `fairseq-hydra-train` works inside its output folder.
    Edit(_COMPOSER, 1, change_line, ("from hydra.experimental import compose, initialize",
                                     "from hydra import compose, initialize")),
    Edit(_COMPOSER, 1, set_keyword, ("compose", "strict", "")),
    Edit(_COMPOSER, 1, add_after_assignment,
         ("composed_cfg", "OmegaConf.set_struct(composed_cfg, False)")),
    Edit(_COMPOSER, 1, set_keyword, ("initialize", *_HYDRA_BASE)),
    Edit("fairseq*/**/*.py", 4, set_keyword, ("hydra.main", *_HYDRA_BASE)),
    Edit("fairseq/dataclass/initialize.py", 1, write, ("hydra_init", "end", _QUIET_HYDRA)),
    # hydra 1.0 put a file of the folder model/transformer_lm under that name, as fairseq expects,
    # when it has the header `_group_`; now it says so itself. Elsewhere the header has no effect.
    *(
        Edit(f"fairseq/config/model/{name}/*.yaml", places, change_line,
             (_GROUP, f"# @package model.{name}"))
        for name, places in (("transformer_lm", 9), ("wav2vec", 1), ("wav2vec2", 2))
    ),
    Edit("fairseq/**/*.yaml", 43, change_line, (_GROUP, "")),
    # omegaconf 2.1 no longer gives None for a key that is not there.
    Edit("fairseq/checkpoint_utils.py", 1, rename, ("model_cfg._name", "model_cfg.get('_name')")),
    Edit("fairseq/registry.py", 1, rename, ("cfg._name", "cfg.get('_name')")),
    Edit(_LAYERS, 15, drop_assignments,
         (f"{_LAYER}.__init__", *(f"self.{name}" for name in _COPIES + _LAYER_FLAGS))),
    Edit(_LAYERS, 1, assume_false, (f"{_LAYER}.forward", "self.BT_version")),
    Edit(_LAYERS, 1, drop_assignments, (f"{_LAYER}.forward", "self.ever_training")),
    Edit(_LAYERS, 1, write, (f"{_LAYER}._load_from_state_dict", "body", _LOAD_WITHOUT_COPIES)),
    Edit(_ENCODERS, 4, assume_false, (_ENCODER, *_ENCODER_FLAGS)),
    Edit(_ENCODERS, 6, drop_assignments,
         (_ENCODER, *_ENCODER_FLAGS, "layer", "torch_version", "int_version")),
    # `--cpu` under torchrun: DistributedDataParallel takes device ids for accelerators only.
    Edit(_DDP, 1, set_keyword, ("DistributedDataParallel", "device_ids", _ON_CPU)),
    Edit(_DDP, 1, set_keyword, ("DistributedDataParallel", "output_device", _ON_CPU)),
    Edit("fairseq/models/__init__.py", 1, write, ("build_model", "asserts", _UNKNOWN_ARCHITECTURE)),
]  # fmt: skip
