"""Side-by-side measurements of speed and memory, behind ``scripts/benchmark.py``.

Times of different machines, or of one machine at different hours, cannot be compared. So every
benchmark runs all contestants in one process, one after the other within each repetition, and
reports ratios of times that were taken next to each other.
"""
