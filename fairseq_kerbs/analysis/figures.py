"""Figures that are readable in grey, written whole or not at all, the same bytes at every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.corpora.files import atomic_write_bytes
from fairseq_kerbs.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-"},
    {"color": "#b03a2e", "linestyle": "--"},
    {"color": "#2471a3", "linestyle": "-."},
    {"color": "#7d8a2e", "linestyle": (0, (1, 1.2))},
)
"""Styles of the lines of a panel: told apart by their dashes alone, too."""

# what would change from run to run is left out of the file
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
}


def check_figure_path(path: Path) -> None:
    """Refuse a name that no figure can have, before anything is computed.

    Raises:
        UserError: the suffix is none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{path}: the name of a figure must end in one of {', '.join(SUFFIXES)}, which say "
            "what kind of file it is"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; its folder is made where it is missing.

    Args:
        figure: the figure.
        path: where to; the suffix says the format.

    Raises:
        UserError: the suffix is unknown or the file cannot be written.
    """
    from matplotlib import rc_context

    check_figure_path(path)
    suffix = path.suffix.lower()
    with rc_context({"svg.hashsalt": "fairseq_kerbs"}), atomic_write_bytes(path) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
