"""What is edited in fairseq 0.12.2, and why: one entry for each thing that no longer works.

The source is always the same (its sha256 is checked), so regular expressions find the places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

VERSION = "0.12.2+kerbs6"  # a local version: `fairseq==0.12.2` is satisfied by it


class BuildError(SystemExit):
    """Ends the build with one sentence, which a traceback would bury."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"fairseq_wheel: {sentence}")


class Edit(NamedTuple):
    """Put `text` in place of the matches of a pattern in all `files` of a glob.

    `places` is the number of matches in all files together; the build stops at any other. In a
    pattern ``^`` and ``$`` are ends of lines; `text` is as for `re.sub`.
    """

    files: str
    places: int
    pattern: str
    text: str | Callable[[re.Match[str]], str]


def apply_edits(tree: Path, edits: Sequence[Edit]) -> None:
    """Apply `edits` in turn to the source below `tree`.

    A BuildError is raised if one finds another number of places than it names, so that this is not
    the source that it was written for.
    """
    for edit in edits:
        pattern = re.compile(edit.pattern, re.MULTILINE)
        found = 0
        for path in tree.glob(edit.files):
            text, places = pattern.subn(edit.text, path.read_text(encoding="utf-8"))
            if places:
                path.write_text(text, encoding="utf-8")
            found += places
        if found != edit.places:
            raise BuildError(
                f"{edit.pattern!r} was found in {found} places instead of {edit.places} in "
                f"{edit.files}: this is not the source of fairseq that the edit was written for"
            )


def _add_keyword(files: str, places: int, call: str, keyword: str) -> Edit:
    inside = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*?"  # its arguments, with two levels of brackets
    return Edit(files, places, rf"(\b{call}\({inside}),?(\s*\))", rf"\1, {keyword}\2")


def _dedented(found: re.Match[str]) -> str:
    """A branch in the place of the `if` that it belonged to."""
    return indent(dedent(found["branch"]), " " * 8)


_ALL = "fairseq/**/*.py"
_COMPOSER = "fairseq/dataclass/utils.py"
_HYDRA_BASE = 'version_base="1.1"'
_LAYER = "fairseq/modules/transformer_layer.py"
_ENCODER = "fairseq/models/transformer/transformer_encoder.py"
_COPIES = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)

_HASH = """
    def __hash__(self) -> int:
        return hash(type(self))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("__hash__") is None:
            cls.__hash__ = FairseqDataclass.__hash__
"""
_QUIET_HYDRA = r"""
    import warnings

    for notice in ("version_base=.1.1. selects", ".* is validated against ConfigStore"):
        warnings.filterwarnings("ignore", message=r"\s*" + notice)
"""
_UNKNOWN_ARCHITECTURE = """\
    if model is None:
        raise SystemExit(
            f"fairseq: error: there is no architecture '{model_type}'; if it belongs to a "
            "plugin, name the plugin's folder with --user-dir"
        )
"""

_COPY_WHOLE = r"""\1shutil.copyfile(src_path, dst_path + ".tmp")
\1os.replace(dst_path + ".tmp", dst_path)
\1return True
"""
_DOT_IN_NAME = """\
if "." in module_name:
    raise SystemExit(
        f"fairseq: error: --user-dir {module_path}: Python imports no folder with a dot in its "
        "name; rename it, or give a link to it without one"
    )
"""
_NO_FOLDER = """\
raise SystemExit(
    f"fairseq: error: --user-dir: there is no folder {module_path}; that of fairseq_kerbs is "
    'named in any place by --user-dir "$(fairseq-kerbs user-dir)"'
)
"""
_NO_IOPATH = """\
            raise SystemExit(
                "fairseq: error: --write-checkpoints-asynchronously needs the package iopath: "
                "pip install iopath, or leave the flag out"
            ) from None
"""
_PLATEAU = """
    reset = reset_lr_scheduler or reset_optimizer or reset_dataloader
    if extra_state is not None and not reset and trainer.get_num_updates() > 0:
        place, loss = extra_state["train_iterator"], extra_state.get("val_loss")
        if place.get("iterations_in_epoch") == 0 and loss is not None:
            trainer.lr_step(place["epoch"] - 1, loss)
"""

EDITS = [
    Edit("fairseq/version.*", 2, r"0\.12\.2", VERSION),
    # Python 3.11 refuses dataclass instances without a hash as defaults. fairseq's defaults are
    # configurations, read back from the fields, so they stay what they are and get a hash: that of
    # their class, since equal configurations are of one class.
    Edit("fairseq/dataclass/configs.py", 1, r"(?=\n\n@dataclass\nclass CommonConfig)", _HASH),
    # torch 2.6 loads plain tensors only, unless told otherwise; checkpoints hold configurations.
    _add_keyword(_ALL, 25, r"torch\.load", "weights_only=False"),
    # numpy 1.24 and 2.0 took these names away.
    Edit(_ALL, 4, r"\bnp\.(compat\.long|long|int)\b", "np.int64"),
    Edit(_ALL, 1, r"\bnp\.float\b", "float"),
    # --num-batch-buckets: numpy 2.4 took the old name of this keyword away.
    Edit("fairseq/data/data_utils.py", 1, r"\binterpolation=(?=\"lower\")", "method="),
    # numpy 2.3 reads no bytes with fromstring, and matplotlib 3.10 has no tostring_rgb: the figures
    # of --task text_to_speech --tensorboard-logdir.
    Edit(
        "fairseq/tasks/text_to_speech.py",
        1,
        r"np\.fromstring\(fig\.canvas\.tostring_rgb\(\).*\n.*reshape.*\n",
        "np.array(fig.canvas.buffer_rgba())[..., :3]\n",
    ),
    # --dataset-impl huffman: bitarray 3 has no rindex; the last bit that is set, as it returned.
    Edit(
        "fairseq/data/huffman/huffman_coder.py",
        1,
        r"util\.rindex\(a, 1\)",
        "len(a) - 1 - a[::-1].index(1)",
    ),
    # hydra 1.3 has neither `experimental` nor `strict`. version_base="1.1" keeps what fairseq
    # needs: configurations are checked against the schema of the same name, and
    # `fairseq-hydra-train` works inside its output folder. hydra's notices that this will end with
    # 1.4, which the wheel's requirements exclude, are switched off.
    Edit(_COMPOSER, 1, r"hydra\.experimental", "hydra"),
    Edit(
        _COMPOSER,
        1,
        r"^( *)(composed_cfg = compose.*), strict=False\)",
        r"\1\2)\n\1OmegaConf.set_struct(composed_cfg, False)",
    ),
    _add_keyword(_COMPOSER, 1, "with initialize", _HYDRA_BASE),
    _add_keyword("fairseq*/**/*.py", 4, r"hydra\.main", _HYDRA_BASE),
    Edit(
        "fairseq/dataclass/initialize.py",
        1,
        r"            raise\n",
        lambda found: found[0] + _QUIET_HYDRA,
    ),
    # hydra 1.0 put a file of the folder model/transformer_lm under that name, as fairseq expects,
    # when it has the header `_group_`; now it says so itself. Elsewhere the header has no effect.
    *(
        Edit(
            f"fairseq/config/model/{name}/*.yaml",
            places,
            "(?<=^# @package )_group_$",
            f"model.{name}",
        )
        for name, places in (("transformer_lm", 9), ("wav2vec", 1), ("wav2vec2", 2))
    ),
    Edit("fairseq/**/*.yaml", 43, "^# @package _group_$", ""),
    # omegaconf 2.1 no longer gives None for a key that is not there.
    Edit("fairseq/checkpoint_utils.py", 1, r"model_cfg\._name", "model_cfg.get('_name')"),
    Edit("fairseq/registry.py", 1, r"\bcfg\._name", "cfg.get('_name')"),
    # The Transformer encoder's inference path through torch._transformer_encoder_layer_fwd stops
    # with "Mask Type should be defined" on padded batches, and its copies of every layer's weights,
    # never trained, stop DistributedDataParallel ("parameters that were not used"). Both go;
    # checkpoints written by an unedited fairseq hold the copies.
    Edit(_LAYER, 1, r"(?s) *self\.load_to_BT = False\n.*?(?=\n    def _load_from)", "\n"),
    Edit(
        _LAYER,
        1,
        r"(?s) *self\.load_to_BT = True\n.*?super\(.*?\)\.",
        f"        for copy in {_COPIES}:\n"
        "            state_dict.pop(prefix + copy, None)\n"
        "        super().",
    ),
    Edit(
        _LAYER,
        1,
        r"(?s) *if self\.training:\n *self\.ever_training = True\n.*?        else:\n"
        r"(?P<branch>.*?return x\n)(?=\n\n)",
        lambda found: "\n" + _dedented(found),
    ),
    Edit(
        _ENCODER,
        1,
        r"(?s) *# nested tensor and BT enable\n.*?        else:\n"
        r"(?P<branch> *processing_mask.*?\n)",
        lambda found: "\n\n" + _dedented(found),
    ),
    Edit(_ENCODER, 1, r"(?s) *# change back to non-nested.*?(?=\n        if self\.layer)", "\n"),
    # Every program recommended a tensorboardX that it does not need: torch has what it is used for.
    Edit("fairseq/tasks/text_to_speech.py", 1, "(?<=from )tensorboardX", "torch.utils.tensorboard"),
    # `--cpu` under torchrun: DistributedDataParallel takes device ids for accelerators only.
    Edit(
        "fairseq/models/distributed_fairseq_model.py",
        2,
        r"^(            (?:device_ids|output_device)=)(\[?args\.device_id)",
        r"\1None if device.type == 'cpu' else \2",
    ),
    # A checkpoint whose architecture is a plugin's ends in an IndexError, because the message that
    # says so cannot be formatted, when --user-dir is forgotten.
    Edit(
        "fairseq/models/__init__.py",
        1,
        r"(?s)^    assert model is not None, \(.*?\n    \)\n",
        _UNKNOWN_ARCHITECTURE,
    ),
    # --user-dir: a folder that is not there, one whose name Python takes for a module in a package,
    # and one named like another module ended in tracebacks.
    Edit(
        "fairseq/utils.py",
        1,
        r"^( *)raise FileNotFoundError\(module_path\)\n",
        lambda found: indent(_NO_FOLDER, found[1]),
    ),
    Edit(
        "fairseq/utils.py",
        1,
        r"^( *)module_parent, module_name = os\.path\.split\(module_path\)\n",
        lambda found: found[0] + indent(_DOT_IN_NAME, found[1]),
    ),
    Edit(
        "fairseq/utils.py",
        1,
        r"(?<=elif module_path in )sys\.modules\[module_name\]\.__path__:",
        'getattr(sys.modules[module_name], "__path__", []):',
    ),
    Edit(
        "fairseq/utils.py",
        1,
        r"raise ImportError\(\n( *)\"(?=Failed to import --user-dir)",
        r'raise SystemExit(\n\1"fairseq: error: ',
    ),
    # --bf16 stood for --tpu, and its library is missing wherever there is none.
    Edit("fairseq/options.py", 1, r"^    if args\.bf16:\n        args\.tpu = True\n", ""),
    # --amp: torch remembers by the object whose gradients it has divided by the scale of the loss;
    # fairseq clips those of torch's optimizer and steps its own, so that they were divided twice.
    Edit("fairseq/optim/amp_optimizer.py", 1, r"(?<=scaler\.step\(self\.)fp32_", ""),
    # A gradient that is not finite: the hooks that look for where it began stop at a Transformer's
    # encoder, which returns no tensor, in a StopIteration that hides the reason.
    _add_keyword("fairseq/trainer.py", 1, "with NanDetector", "backward=False"),
    # --no-repeat-ngram-size compared with the padding after the last words, and forbade nothing.
    Edit(
        "fairseq/ngram_repeat_block.py",
        1,
        r"\[\s+-\(self\.no_repeat_ngram_size - 1\) :\s+\]",
        "[check_start_pos : step + 1]",
    ),
    Edit("fairseq/ngram_repeat_block.py", 1, r"(?<=for i in range\()(?=check_start_pos)", "1, "),
    # A checkpoint's second name, such as checkpoint_last.pt, stood for half a file while it was
    # copied; the first is written whole.
    Edit(
        "fairseq/file_io.py",
        1,
        r"^( *)return shutil\.copyfile\(src_path, dst_path\)\n",
        _COPY_WHOLE,
    ),
    # --write-checkpoints-asynchronously without the package iopath ended with status 0, untrained.
    Edit(
        "fairseq_cli/train.py",
        1,
        r"(?s) *logging\.exception\(\n *\"Asynchronous checkpoint writing.*?\n {12}return\n",
        _NO_IOPATH,
    ),
    # --lr-scheduler reduce_lr_on_plateau did not hear of an epoch after which a training ended.
    Edit(
        "fairseq/checkpoint_utils.py", 1, r"(?<=trainer\.lr_step\(epoch_itr\.epoch\)\n)", _PLATEAU
    ),
]
