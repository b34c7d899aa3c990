"""Helpers for tests of scripts/tables."""

from scripts.tables.descriptions import Run, load_table, plan_runs


def runs_of(*names: str, scale: str = "small") -> list[Run]:
    return [run for name in names for run in plan_runs(load_table(name), scale)]


OWN = """
title: own
rows: {a: A, b: B}
baseline: a
data:
  toy: {folders: [toy], prepare: echo}
columns:
  mt:
    metric: bleu4
    small:
      data: toy
      configs: {a: toy.yaml, b: toy.yaml}
"""


LOG = """\
2026 | INFO | fairseq_cli.train | num. shared model params: 1,000,000 (num. trained: 1,000,000)
2026 | INFO | fairseq_cli.train | num. shared model params: 1,234,567 (num.
2026 | INFO | train_inner | epoch 1: loss=9, num_updates=150, train_wall=99, wall=60
2026 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.5 | nll_loss 3.165 | ppl 9
2026 | INFO | train_inner | epoch 1: loss=9, num_updates=150, train_wall=99, wall=20
2026 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 4.4 | nll_loss 3.2 | ppl 9
2026 | INFO | valid | epoch 003 | valid on 'valid' subset | loss nan | nll_loss nan | ppl nan
2026 | INFO | train | epoch 3 | loss 5.5 | train_wall 29 | wall 90
"""


def cells_of(written: str, start: str) -> list[str]:
    """Cells of the row of the last table that begins so."""
    rows = [line for line in written.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in rows[-1].split("|")[2:-1]]
