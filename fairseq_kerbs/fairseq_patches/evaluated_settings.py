"""Settings that fairseq evaluates as Python are read as the literals that they should be."""

from importlib import import_module

from fairseq_kerbs.fairseq_patches.registry import replace
from fairseq_kerbs.utils.literals import read_literal

EVALUATING = (
    *("utils", "criterions.ctc", "data.audio.raw_audio_dataset", "data.codedataset"),
    *("models.fconv", "models.fconv_lm", "models.fconv_self_att", "models.hubert.hubert"),
    *("models.lightconv_lm", "models.speech_to_text.s2t_wav_transformer", "models.transformer_lm"),
    *("models.wav2vec.wav2vec", "models.wav2vec.wav2vec2"),
    *("optim.adafactor", "optim.adam", "optim.adamax", "optim.cpu_adam", "optim.fused_lamb"),
)
"""Modules of fairseq 0.12.2 that call ``eval``: their own names are found before the built-in."""

for _name in EVALUATING:
    _module = import_module(f"fairseq.{_name}")
    replace(_module, "eval", read_literal, "a checkpoint's settings could run a program")
