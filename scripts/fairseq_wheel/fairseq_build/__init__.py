"""Build the wheel of fairseq 0.12.2 from its released source, made to run on today's Python."""


class BuildError(SystemExit):
    """Ends the build with one sentence, which a traceback would bury."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"fairseq_wheel: {sentence}")
