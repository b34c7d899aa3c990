"""``fairseq-kerbs architectures`` and ``user-dir``: what fairseq knows of the plugin."""

from __future__ import annotations

import argparse
import inspect
import logging

import click

from fairseq_kerbs.cli.parameters import Command, examples
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER


@click.command("architectures", cls=Command, epilog=examples("architectures"))
def architectures() -> None:
    """List the architectures for --arch, with the default sizes of their decoders.

    Print the architectures, with the default sizes of their decoders, and the flags of the output
    layer that --arch alone sets. Numbers without a published value are ours.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from tabulate import tabulate

    from fairseq_kerbs.configurations import flag_of
    from fairseq_kerbs.models import PRESETS
    from fairseq_kerbs.models.config import output_layer_flags

    names = ("embed_dim", "hidden_size", "ffn_embed_dim", "layers", "attention_heads", "dropout")
    rows = []
    settings: dict[str, dict[str, str]] = {}  # of every architecture, by flag
    for model, presets in PRESETS.items():
        for arch in presets:
            flags = argparse.Namespace()
            ARCH_CONFIG_REGISTRY[arch](flags)
            sizes = [getattr(flags, n, getattr(flags, f"decoder_{n}", "-")) for n in names]
            what = (inspect.getdoc(model) or "").splitlines()[0].rstrip(".")
            rows.append([arch, *map(str, sizes), what])
            settings[arch] = {name: str(value) for name, value in output_layer_flags(flags).items()}
    head = ["--arch", "embedding", "hidden", "feed-forward", "layers", "heads", "dropout", "what"]
    sides = ["left", *["right"] * len(names), "left"]
    print(tabulate(rows, head, "plain", disable_numparse=True, colalign=sides))

    every = list(settings.values())
    known = {name for chosen in every for name in chosen}
    varying = sorted(name for name in known if len({of.get(name) for of in every}) > 1)
    common = {name: value for name, value in every[0].items() if name not in varying}
    print("\nThe output layer of all:", *(f"{flag_of(n)} {value}" for n, value in common.items()))
    print()
    varied = [[arch, *(of.get(name, "-") for name in varying)] for arch, of in settings.items()]
    print(tabulate(varied, ["--arch", *map(flag_of, varying)], "plain", disable_numparse=True))


@click.command("user-dir", cls=Command, epilog=examples("user-dir"))
def user_dir() -> None:
    """Print the folder to give to --user-dir of fairseq's programs."""
    print(PLUGIN_FOLDER)
