"""What is edited in fairseq 0.12.2, and why: one entry for each thing that no longer works."""

from __future__ import annotations

from fairseq_build.applying import Edit
from fairseq_build.expression_rules import (
    AddKeyword,
    ChangeKeyword,
    ChangeLine,
    DropLastKeyword,
    RenameExpression,
    RenameModule,
    UseImported,
)
from fairseq_build.sdist import RELEASE
from fairseq_build.statement_rules import (
    AddAfterAssignment,
    AppendToBody,
    AssumeFalse,
    DropAssignments,
    ReplaceAsserts,
    ReplaceBody,
)

# A local version: `fairseq==0.12.2` is satisfied by it.
VERSION = f"{RELEASE}+kerbs2"

# Python 3.11 refuses dataclass instances without a hash as defaults. fairseq uses configurations as
# defaults and reads them back from the fields, so they stay what they are and get a hash: that of
# their class, since equal configurations are of one class.
_HASHABLE_CONFIGS = Edit(
    "fairseq/dataclass/configs.py",
    AppendToBody(
        "FairseqDataclass",
        """
        def __hash__(self) -> int:
            return hash(type(self))

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            if cls.__dict__.get("__hash__") is None:
                cls.__hash__ = FairseqDataclass.__hash__
        """,
    ),
    places=1,
)

# torch 2.6 loads plain tensors only, unless told otherwise; checkpoints hold configurations too.
_LOAD_OBJECTS = Edit("fairseq/**/*.py", AddKeyword("torch.load", "weights_only", "False"), 25)

# Strings of settings ran as programs, those of a checkpoint too: literals are read in place of all
# evaluation. The build copies the reader from the plugin, which does the same in a fairseq that is
# not this one; a change of the reader is a new VERSION.
_LITERALS = Edit("fairseq/**/*.py", UseImported("eval", "fairseq.literals", "read_literal"), 52)

# numpy 1.24 and 2.0 took these names away.
_NUMPY_NAMES = [
    Edit("fairseq/**/*.py", RenameExpression("np.compat.long", "np.int64"), places=2),
    Edit("fairseq/**/*.py", RenameExpression("np.long", "np.int64"), places=1),
    Edit("fairseq/**/*.py", RenameExpression("np.int", "np.int64"), places=1),
    Edit("fairseq/**/*.py", RenameExpression("np.float", "float"), places=1),
]

# hydra 1.3 has neither `experimental` nor `strict`. version_base="1.1" keeps what fairseq needs:
# configurations are checked against the schema of the same name, and `fairseq-hydra-train` works
# inside its output folder. hydra announces at each command that this ends with 1.4, which the
# wheel's requirements exclude: the two notices are switched off.
_COMPOSER = "fairseq/dataclass/utils.py"
_HYDRA = [
    Edit(_COMPOSER, RenameModule("hydra.experimental", "hydra"), places=1),
    Edit(_COMPOSER, DropLastKeyword("compose", "strict"), places=1),
    Edit(
        _COMPOSER,
        AddAfterAssignment("composed_cfg", "OmegaConf.set_struct(composed_cfg, False)"),
        places=1,
    ),
    Edit(_COMPOSER, AddKeyword("initialize", "version_base", '"1.1"'), places=1),
    Edit("fairseq*/**/*.py", AddKeyword("hydra.main", "version_base", '"1.1"'), places=4),
    Edit(
        "fairseq/dataclass/initialize.py",
        AppendToBody(
            "hydra_init",
            r"""
            import warnings

            for notice in ("version_base=.1.1. selects", ".* is validated against ConfigStore"):
                warnings.filterwarnings("ignore", message=r"\s*" + notice)
            """,
        ),
        places=1,
    ),
]

# hydra 1.0 put a file of the folder model/transformer_lm under that name, as fairseq expects, when
# it has the header `_group_`; now it says so itself. Elsewhere the header has no effect any more.
_PACKAGES = [
    *(
        Edit(
            f"fairseq/config/model/{name}/*.yaml",
            ChangeLine("# @package _group_", f"# @package model.{name}"),
            places,
        )
        for name, places in (("transformer_lm", 9), ("wav2vec", 1), ("wav2vec2", 2))
    ),
    Edit("fairseq/**/*.yaml", ChangeLine("# @package _group_", ""), places=43),
]

# omegaconf 2.1 no longer gives None for a key that is not there.
_ABSENT_KEYS = [
    Edit(file, RenameExpression(f"{name}._name", f"{name}.get('_name')"), places=1)
    for file, name in (("fairseq/checkpoint_utils.py", "model_cfg"), ("fairseq/registry.py", "cfg"))
]

# The Transformer encoder's inference path through torch._transformer_encoder_layer_fwd stops with
# "Mask Type should be defined" on padded batches, and its copies of every layer's weights, never
# trained, stop DistributedDataParallel ("parameters that were not used"). Both go.
_COPIES = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias",
           "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")  # fmt: skip
_LAYER = "TransformerEncoderLayerBase"
_LAYER_FLAGS = ("load_to_BT", "ever_training", "activation_relu_or_gelu", "can_use_fastpath",
                "cfg_checkpoint_activations", "BT_version", "torch_version",
                "int_version")  # fmt: skip
_ENCODER = "TransformerEncoderBase.forward_scriptable"
_ENCODER_FLAGS = frozenset({"BT_flag", "NT_flag", "BT_version", "NT_version"})
_NO_FAST_PATH = [
    Edit(
        "fairseq/modules/transformer_layer.py",
        DropAssignments(
            f"{_LAYER}.__init__", frozenset(f"self.{name}" for name in _COPIES + _LAYER_FLAGS)
        ),
        places=15,
    ),
    Edit(
        "fairseq/modules/transformer_layer.py",
        AssumeFalse(f"{_LAYER}.forward", frozenset({"self.BT_version"})),
        places=1,
    ),
    Edit(
        "fairseq/modules/transformer_layer.py",
        DropAssignments(f"{_LAYER}.forward", frozenset({"self.ever_training"})),
        places=1,
    ),
    # Checkpoints written by an unedited fairseq hold the copies.
    Edit(
        "fairseq/modules/transformer_layer.py",
        ReplaceBody(
            f"{_LAYER}._load_from_state_dict",
            f"""
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
            """,
        ),
        places=1,
    ),
    Edit(
        "fairseq/models/transformer/transformer_encoder.py",
        AssumeFalse(_ENCODER, _ENCODER_FLAGS),
        places=4,
    ),
    Edit(
        "fairseq/models/transformer/transformer_encoder.py",
        DropAssignments(_ENCODER, _ENCODER_FLAGS | {"layer", "torch_version", "int_version"}),
        places=6,
    ),
]

# `--cpu` under torchrun: DistributedDataParallel takes device ids for accelerators only.
_DDP_ON_CPU = [
    Edit(
        "fairseq/models/distributed_fairseq_model.py",
        ChangeKeyword("DistributedDataParallel", name, "None if device.type == 'cpu' else {}"),
        places=1,
    )
    for name in ("device_ids", "output_device")
]

# A checkpoint whose architecture is a plugin's ends in an IndexError, because the message that says
# so cannot be formatted, when --user-dir is forgotten.
_UNKNOWN_ARCHITECTURE = Edit(
    "fairseq/models/__init__.py",
    ReplaceAsserts(
        "build_model",
        """
        if model is None:
            raise SystemExit(
                f"fairseq: error: there is no architecture '{model_type}'; if it belongs to a "
                "plugin, name the plugin's folder with --user-dir"
            )
        """,
    ),
    places=1,
)

EDITS = [
    _HASHABLE_CONFIGS,
    _LOAD_OBJECTS,
    _LITERALS,
    *_NUMPY_NAMES,
    *_HYDRA,
    *_PACKAGES,
    *_ABSENT_KEYS,
    *_NO_FAST_PATH,
    *_DDP_ON_CPU,
    _UNKNOWN_ARCHITECTURE,
]
