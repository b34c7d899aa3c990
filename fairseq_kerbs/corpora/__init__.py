"""Corpora: the synthetic one, released ones, and raw parallel text made ready for fairseq."""
