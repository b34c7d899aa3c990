"""What all our language models share: the task that they need, and the sizes of recurrent ones."""

from __future__ import annotations

from typing import Any

from fairseq_kerbs.models.config import RecurrentLanguageModelConfig, fill_defaults

MAX_POSITIONS = 100_000


def check_task(task: Any, arch: str, target: str) -> None:
    """Make sure that a task asks for what an architecture predicts.

    Args:
        task: fairseq's task.
        arch: name of the architecture, for the message.
        target: "future" for left-to-right models, "self" for cloze models.

    Raises:
        ValueError: it does not; the message names the flag.
    """
    targets = getattr(task, "targets", None)
    if targets is None:
        raise ValueError(f"--arch {arch} is a language model: use --task language_modeling.")
    if list(targets) != [target]:
        if target == "self":
            raise ValueError(
                f"--arch {arch} predicts each word from both of its sides: give --self-target, "
                "without --future-target and --past-target."
            )
        raise ValueError(
            f"--arch {arch} predicts the next word: leave out --self-target, --past-target and "
            "--future-target (--self-target is for --arch bilstm_lm_kerbs)."
        )
    if len(task.target_dictionary) != len(task.source_dictionary):
        raise ValueError(
            "--output-dictionary-size does not go together with --arch "
            f"{arch}: words are read and predicted with the same senses. Leave it out, and choose "
            "the vocabulary with 'fairseq-kerbs prepare-lm --words'."
        )


def preset(args: Any, **sizes: Any) -> None:
    """Set what the command line left open: first to a preset's sizes, then to the defaults."""
    for name, value in sizes.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    fill_defaults(args, RecurrentLanguageModelConfig)
