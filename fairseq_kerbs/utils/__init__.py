"""Errors, files, processes and the machine: what knows neither torch nor fairseq."""
