"""The papers' tables: descriptions, trainings that go on where they stopped, figures, reports.

experiments   configurations: fairseq's flags as YAML
description   a table as data: rows, columns, seeds, scales, the paper's figures
runs          one configuration × one seed × one data set, as steps that are commands
runner        runs what is missing, several runs side by side
scoring       a step of its own: BLEU or perplexity of what was generated
results       the figures of a table, gathered from the work folder; paired bootstrap
report        Markdown, CSV and JSON
texts         tables of examples and of words
logs          copies of logs and hypotheses without machine paths
"""
