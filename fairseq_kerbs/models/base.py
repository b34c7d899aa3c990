"""Base of all architectures: ``forward`` returns features, and the output layer scores them.

fairseq calls ``get_normalized_probs`` with the output of ``forward`` and receives probabilities of
words, so no other part of fairseq sees senses.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import fields, make_dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_kerbs.models import config
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, SeparateEmbedding
from fairseq_kerbs.output_layers.kerbs import SAMPLE
from fairseq_kerbs.senses import build_sense_table, checksum_of
from fairseq_kerbs.training import guards
from fairseq_kerbs.training.sense_updates import SenseSchedule, install_hook
from fairseq_kerbs.utils.checkpoint_files import not_finite
from fairseq_kerbs.utils.errors import UserError

OUTPUT_PREFIX = "decoder.output."
"""What the names of the output layer's parameters begin with."""


class KerbsModel(BaseFairseqModel):
    """Mixin for fairseq models: flags, construction, and checks of loaded checkpoints."""

    arch: ClassVar[str]  # its name in fairseq
    flags: ClassVar[type[FairseqDataclass]]  # ours, beside those of the fairseq model it extends
    target: ClassVar[str | None] = None  # what a language model predicts, "future" or "self"

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags of fairseq's model and of fairseq_kerbs."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, cls.flags(), delete_default=True)
        config.add_reallocation_at(parser)

    @classmethod
    def hydra_flags(cls) -> type[FairseqDataclass]:
        """Dataclass for Hydra: our flags with types and defaults, fairseq's flags with null."""
        parser = argparse.ArgumentParser(add_help=False)
        cls.add_args(parser)
        names = [action.dest for action in parser._actions if action.dest != argparse.SUPPRESS]
        stock: dict[str, Any] = dict.fromkeys(names)
        if cls.target:  # what fairseq-train's flags say to both the task and a language model
            for name in ("tokens_per_sample", "max_target_positions"):
                stock[name] = f"${{oc.select:task.{name},null}}"
        stock["max_update"] = "${oc.select:optimization.max_update,null}"
        ours = cls.flags.__dataclass_fields__
        added = [(name, Any, value) for name, value in stock.items() if name not in ours]
        return make_dataclass(f"{cls.__name__}Flags", added, bases=(cls.flags,))

    @classmethod
    def fill(cls, args: Any, sizes: dict[str, Any] | None = None) -> None:
        """Set flags that were not given, first to the sizes of a preset, then to the defaults."""
        if OmegaConf.is_config(args):  # fairseq-hydra-train's, where null is left open
            for name in [name for name, value in args.items() if value is None]:
                del args[name]
        values = {item.name: item.default for item in fields(cls.flags)} | (sizes or {})
        for name, value in ({"reallocation_at": None} | values).items():
            if getattr(args, name, None) is None:
                setattr(args, name, value)
        config.fill_for_policy(args)
        if hasattr(args, "input_embedding"):
            tied = getattr(args, "share_decoder_input_output_embed", None)
            if tied and args.input_embedding == "separate":
                raise UserError(
                    "--share-decoder-input-output-embed asks for one embedding, and "
                    "--input-embedding separate for two: leave one out."
                )
            # --input-embedding decides whether they are the same rows, not this flag of fairseq
            args.share_decoder_input_output_embed = args.input_embedding == "composed"
            # a default of fairseq's lstm, which one criterion alone reads
            args.adaptive_softmax_cutoff = getattr(args, "adaptive_softmax_cutoff", None)
        cls.fill_stock(args)

    @classmethod
    def fill_stock(cls, args: Any) -> None:
        """Set the defaults of the fairseq model that this class extends."""

    @classmethod
    def build_model(cls, args: Any, task: Any) -> Any:
        """Build the model and install reallocation in its task. A UserError names wrong flags."""
        guards.check_named_checkpoints()
        settings = config.settings_of_program(args)
        args = config.as_namespace(args)
        cls.fill(args)
        with config.user_errors():
            if cls.target is not None:
                _check_task(task, cls.arch, cls.target)
            schedule = cls.check_flags(args, settings)
            model = cls.build(args, task)
        guards.leave_out_copies(model)
        install_hook(task, schedule)
        guards.guard_training(task, settings, args)
        return model

    @classmethod
    def check_flags(cls, args: Any, settings: dict[str, Any]) -> SenseSchedule:
        """Raise a ValueError for wrong flags, whatever the data are; return the schedule of senses.

        ``settings`` are those of :func:`.config.settings_of_program`.
        """
        config.check_ranges(args, cls.flags)
        cls.check(args)
        config.check_criterion(args, settings)
        config.check_read(args)
        return config.build_schedule(args)

    @classmethod
    def check(cls, args: Any) -> None:
        """Raise a ValueError that names the flag if flags exclude each other."""

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """Build the model from checked flags, by default as the fairseq model does."""
        return super().build_model(args, task)

    def upgrade_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Refuse parameters that are missing or not finite, with a UserError.

        fairseq calls this before it loads them.
        """
        super().upgrade_state_dict(state_dict)
        missing = self.state_dict().keys() - state_dict.keys()
        others = {name for name in missing if not name.startswith(OUTPUT_PREFIX)}
        has_layer = any(name.startswith(OUTPUT_PREFIX) for name in state_dict)
        # parameters of another architecture are named below, not the sizes of its output layer
        if not (has_layer and others):
            check_output_layer(self.decoder.output, state_dict)
        if missing:
            raise UserError(
                f"the checkpoint has no {min(others or missing)}: give the architecture, the "
                "numbers of layers and the other flags that it was trained with."
            )
        diverged = not_finite(state_dict)
        if diverged is not None:
            raise UserError(
                f"{diverged} of the checkpoint is not finite: the file is damaged, or its training "
                "had diverged; take an earlier checkpoint of that training."
            )


def check_flags_of_model(values: argparse.Namespace) -> None:
    """Raise a UserError for wrong flags of one of our architectures, without building its model.

    ``values`` are those of all flags of fairseq-train. Other architectures are not checked.
    """
    model = ARCH_MODEL_REGISTRY.get(values.arch)
    if model is not None and issubclass(model, KerbsModel):
        with config.user_errors():
            model.check_flags(values, vars(values))


def _check_task(task: Any, arch: str, target: str) -> None:
    """Raise a ValueError if the task's targets are not those of the language model."""
    targets = getattr(task, "targets", None)
    if targets is None:
        raise ValueError(
            f"--arch {arch} is a language model: use --task language_modeling, or name a model for "
            "translation."
        )
    if list(targets) != [target]:
        flags = "give --self-target alone" if target == "self" else "leave out --self-target"
        raise ValueError(
            f"--arch {arch} predicts the {target} target: {flags}, without --past-target and "
            "--future-target."
        )
    if len(task.target_dictionary) != len(task.source_dictionary):
        raise ValueError(
            f"--output-dictionary-size does not go together with --arch {arch}, which reads and "
            "predicts words with the same senses: leave it out, and choose the vocabulary with "
            "'fairseq-kerbs prepare-lm --words'."
        )


# ------------------------------------------------------------------ embeddings, scores


def build_input_embedding(
    args: Any,
    dictionary: Any,
    read: int,
    features: int,
    composed: type[ComposedEmbedding] = ComposedEmbedding,
) -> ComposedEmbedding | SeparateEmbedding:
    """Build the decoder's input embedding, and with it the output layer that it refers to.

    ``features`` is the size of the decoder's features and of a composed embedding. ``read`` is the
    size of a separate embedding. ``composed`` is the class of the composed one. Raises a ValueError
    if flags do not fit the vocabulary or each other.
    """
    layer = config.build_output_layer(args, len(dictionary), features + bool(args.sense_bias))
    if getattr(args, "input_embedding", "composed") == "separate":
        return SeparateEmbedding(layer, dictionary.pad(), read)
    return composed(layer, dictionary.pad(), args.composition == "posterior")


class ScoredByOutputLayer:
    """Mixin for fairseq decoders with an output layer, ``output``."""

    output: OutputLayer

    def contexts(self, features: Tensor) -> Tensor:
        """Context vectors [..., d] from the decoder's features, with a 1 appended for a bias."""
        return F.pad(features, (0, 1), value=1.0) if self.output.biased else features

    def output_layer(self, features: Tensor) -> Tensor:
        """Features as they are: words are scored in :meth:`get_normalized_probs`."""
        return self.output.anchor(features)

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        """Word (log-)probabilities of features [batch, len, d], in float32: [batch, len, V]."""
        scores = self.output.log_probs(net_output[0])
        return scores if log_probs else scores.exp()


def _check_kind(held: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise a UserError if a checkpoint's output layer is of another kind or size than the model's.

    Args:
        held: parameters and buffers of the checkpoint's layer.
        expected: those of the model's layer.
    """
    kind = _kind_of(held)
    wanted = _kind_of(expected)
    if (kind, wanted) == ("softmax", "kerbs"):
        raise UserError(
            "the checkpoint is a softmax model, which has no senses: give it senses first, by "
            "fairseq-kerbs convert, and train on by the command that it prints. Or train a softmax "
            "with --output-layer softmax."
        )
    if kind != wanted:
        raise UserError(
            f"the checkpoint was trained with --output-layer {kind}, and this model has "
            f"--output-layer {wanted}: give {kind}, or name another checkpoint."
        )
    different = held.keys() ^ expected.keys()
    if different and all(name.startswith(("theta", "kernel")) for name in different):
        flag = "--kernel" if kind == "kerbs" else "--mixture-kernels"
        raise UserError(
            f"the checkpoint was trained with another {flag} than this model: give the one that it "
            "was trained with, or name another checkpoint."
        )
    if different:
        raise UserError(
            f"{', '.join(sorted(different))} of the output layer are in the checkpoint or in this "
            "model alone: give the flags that it was trained with. If they are the same, it is "
            "damaged or of another version; take another checkpoint."
        )
    size = held["weight"].shape[1]
    difference = expected["weight"].shape[1] - size
    if abs(difference) == 1:  # the bias is one more number of each embedding
        in_model = "with" if difference > 0 else "without"
        in_checkpoint = "without" if difference > 0 else "with"
        raise UserError(
            f"the checkpoint was trained {in_checkpoint} --sense-bias, and this model is "
            f"{in_model} it (--reallocation {config.policies_with_bias()} turns it on): give the "
            "flags that it was trained with."
        )
    if difference:
        raise UserError(
            f"the checkpoint has output embeddings of size {size}, and this model of size "
            f"{size + difference}: give the sizes that it was trained with."
        )


def _kind_of(names: Collection[str]) -> str:
    """The value of --output-layer of a layer, by the names of its parameters and buffers."""
    if any(name.startswith("inventory.") for name in names):
        return "kerbs"
    if {*names} == {"weight"}:
        return "softmax"
    return "mos" if "bias" in names else "mixture"


def check_output_layer(layer: OutputLayer, state_dict: dict[str, Tensor]) -> None:
    """Raise a UserError if a checkpoint does not fit the output layer.

    The error names the flags or the data that differ, or the damage.
    """
    expected = layer.state_dict()
    prefix = OUTPUT_PREFIX
    held = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    held = {key: value for key, value in held.items() if not key.startswith(SAMPLE)}
    if not held:
        raise UserError(
            "the checkpoint is of a model without an output layer of this plugin, such as one of "
            "fairseq: give it one first, by fairseq-kerbs convert."
        )
    _check_kind(held, expected)
    senses = len(held["weight"])
    words = len(held.get("inventory.log_prob", held["weight"]))
    if words != layer.vocab_size:
        raise UserError(
            f"the checkpoint has {words} words, and the dictionary of the data {layer.vocab_size}: "
            "give the data that it was trained with."
        )
    if senses != layer.total_senses:
        raise UserError(
            f"the checkpoint has {senses} senses, this model {layer.total_senses}: give the "
            f"--total-senses that it was trained with ({senses / words:.6g})."
        )
    if "inventory.usage" not in expected:
        return
    if held["inventory.usage"].min() < 0:
        raise UserError(
            f"a negative number is in {prefix}inventory.usage of the checkpoint: the file is "
            "damaged; take another checkpoint of that training."
        )
    # an average of checkpoints can have real numbers here
    stored = held["inventory.word_of_sense"]
    allocation = stored.long()
    averaged = bool((allocation != stored).any())
    if averaged or checksum_of(allocation).tolist() != held["inventory.checksum"].tolist():
        raise UserError(
            "the checkpoint is an average of checkpoints between which senses moved to other "
            "words: average only those after the last line 'reallocation after … updates' of the "
            "training's log. If it is no average, it is damaged; take another checkpoint."
        )
    try:
        build_sense_table(allocation, words, layer.max_senses)
    except ValueError as error:
        raise UserError(
            f"the checkpoint's senses do not fit: {error} Give the --max-senses that it was "
            "trained with, or, if it is damaged, take another checkpoint of that training."
        ) from None
