"""Corpora: the embedded one, and raw parallel text made ready for fairseq."""
