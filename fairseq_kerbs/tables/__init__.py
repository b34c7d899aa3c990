"""The papers' tables: descriptions, trainings that go on where they stopped, figures, reports.

description   a table as data: rows, columns, seeds, scales, the paper's figures
cells         one configuration × one seed × one data set, as steps that are commands
state         what the records in the work folder say about a step
runner        runs what is missing, several cells side by side
scoring       a step of its own: BLEU or perplexity of what was generated
statistics    mean, deviation, paired bootstrap
figures       the figures of a table, gathered from the work folder
report        Markdown, CSV and JSON
logs          copies of logs and hypotheses without machine paths
"""
