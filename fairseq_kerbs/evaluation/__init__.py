"""Evaluation: BLEU with its signature, and what it reads."""
