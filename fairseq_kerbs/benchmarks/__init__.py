"""Side-by-side measurements of speed and memory, behind ``scripts/benchmark.py``."""
