"""What several tests use."""

HANGS = 1800.0
"""Seconds after which a command hangs, on a slow and shared machine, too."""
