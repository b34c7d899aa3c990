"""The papers' tables: descriptions, trainings that go on where they stopped, figures, reports.

experiments   configurations: fairseq's flags as YAML
description   a table as data: rows, columns, seeds, scales, the paper's figures
runs          one configuration × one seed × one data set, as steps that are commands
runner        runs what is missing, several runs side by side
results       BLEU or perplexity of what runs have made, by tables; paired bootstrap
report        Markdown, CSV, and copies of logs and hypotheses
command       all of it, as fairseq-kerbs tables
"""
