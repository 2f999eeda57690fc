"""The studies of ``benchmarks/paper.py``, one a file: its runs, its table and its plot."""
