"""Build the wheel of fairseq 0.12.2 from its released source, made to run on today's Python."""
