"""Write docs/flags.md, the page of all flags, from the code: ``make docs``."""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, get_args

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"

_INTRODUCTION = """\
# Flags

`make docs` writes this page from the code. Brackets say where a default depends on another flag.
fairseq documents [its own flags](https://fairseq.readthedocs.io/en/latest/command_line_tools.html).
"""

_AFTER_POLICIES = """\
A flag that only another policy reads is an error. With `--reallocation none` and without KerBS,
flags of senses have no effect. A training goes on only under the policy that it began with, or
under `none`.
"""

_AFTER_ARCHITECTURES = """\
The paper gives no `--init-scale`. These are ours, from
[short trainings](../results/init_scale/README.md), those of recurrent models with
`--attention luong`. [A search with equal tries](../results/search/README.md) for each output layer
has been made for the Transformer.
"""

_SIZES = ("embed_dim", "hidden_size", "ffn_embed_dim", "layers", "attention_heads", "dropout")


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


def page() -> str:
    """The page as Markdown."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
    from fairseq.criterions import label_smoothed_cross_entropy as stock

    from fairseq_kerbs.criterions import KerbsCrossEntropyCriterionConfig
    from fairseq_kerbs.models import config

    of_fairseq = stock.LabelSmoothedCrossEntropyCriterionConfig
    parts = [_INTRODUCTION]
    for title, kind, known in (
        ("All architectures", config.KerbsConfig, None),
        ("Transformers, and fairseq's LSTMs", config.SeparableKerbsConfig, config.KerbsConfig),
        ("Transformers", config.TransformerKerbsConfig, config.SeparableKerbsConfig),
        ("Recurrent models", config.RecurrentKerbsConfig, config.KerbsConfig),
        ("lstm_kerbs and gru_kerbs", config.RecurrentAttentionConfig, config.RecurrentKerbsConfig),
        ("Criterion kerbs_cross_entropy", KerbsCrossEntropyCriterionConfig, of_fairseq),
    ):
        names = {"_name"} if known is None else {item.name for item in fields(known)}
        own = [item for item in fields(kind) if item.name not in names]
        rows = [_row(item) for item in own]
        if kind is config.KerbsConfig:
            rows.append(_reallocation_at())
        parts.append(f"## {title}\n\n{table(('flag', 'default', 'meaning'), rows)}")
    parts.append(f"## Policies\n\n{_policies()}\n{_AFTER_POLICIES}")
    parts.append(f"## Defaults by architecture\n\n{_architectures()}\n{_AFTER_ARCHITECTURES}")
    return "\n".join(parts)


def _row(item: Field[Any]) -> list[str]:
    """Flag, default and meaning of a field of a dataclass of fairseq."""
    from fairseq_kerbs.configurations import flag_of

    meaning = item.metadata["help"]
    choices = _choices(item.type)
    if not all(choice in meaning for choice in choices):
        meaning += f": {', '.join(f'`{choice}`' for choice in choices)}"
    default = "" if item.default is None else f"`{_text(item.default)}`"
    return [f"`{flag_of(item.name)}`", default, meaning]


def _choices(kind: Any) -> list[str]:
    """Values of a flag that takes one of several names, or nothing."""
    for option in (kind, *get_args(kind)):
        if isinstance(option, type) and issubclass(option, Enum):
            return [str(choice.value) for choice in option]
    return []


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reallocation_at() -> list[str]:
    """The row of --reallocation-at, which fairseq's dataclasses cannot have."""
    from fairseq_kerbs.models.config import add_reallocation_at

    parser = argparse.ArgumentParser(add_help=False)
    add_reallocation_at(parser)
    (action,) = parser._actions
    return [f"`{action.option_strings[0]}`", "", str(action.help)]


def _policies() -> str:
    """What each policy of --reallocation does and needs."""
    from fairseq_kerbs.reallocation import POLICIES

    rows = []
    for name, policy in POLICIES.items():
        schedule = policy.default_schedule
        when = " ".join(f"{share:g}" for share in schedule.at)
        moves = f"at {when} of `--max-update`" if when else f"every {schedule.interval} updates"
        needs = {"contexts": policy.needs_contexts, "biases": policy.needs_bias}
        rows.append(
            [
                f"`{name}`",
                policy.summary,
                moves,
                f"`{policy.sense_allocation}`",
                ", ".join(need for need, is_needed in needs.items() if is_needed),
            ]
        )
    head = ("`--reallocation`", "what it is", "senses move", "`--sense-allocation`", "needs")
    return table(head, rows)


def _architectures() -> str:
    """Sizes of every architecture, and what else differs among them."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    from fairseq_kerbs.models import PRESETS

    rows = []
    for model, presets in PRESETS.items():
        what = (inspect.getdoc(model) or "").splitlines()[0].rstrip(".").replace("``", "`")
        for arch in presets:
            flags = argparse.Namespace()
            ARCH_CONFIG_REGISTRY[arch](flags)
            sizes = [_size(flags, name) for name in _SIZES]
            rows.append([f"`{arch}`", *sizes, _text(flags.init_scale), what])
    head = ["`--arch`", "embedding", "hidden", "feed-forward", "layers", "heads", "dropout"]
    return table([*head, "`--init-scale`", "model"], rows)


def _size(flags: argparse.Namespace, name: str) -> str:
    """A size of the decoder, or nothing if the architecture has none of this name."""
    value = getattr(flags, name, getattr(flags, f"decoder_{name}", None))
    return "" if value is None else _text(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.exit(main())
