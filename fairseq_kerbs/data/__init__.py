"""Data: text made ready for fairseq, released corpora, the toy corpus, files of gold senses."""
