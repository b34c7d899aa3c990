"""Where a command has the plugin from."""

import atexit


def say(_: str) -> None:
    """Let this process print, as its last line, the file of the plugin's models."""
    atexit.register(_print)


def _print() -> None:
    import fairseq_kerbs.models

    print(fairseq_kerbs.models.__file__)
