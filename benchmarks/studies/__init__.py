"""Studies of ``benchmarks/paper.py``, one per file: runs, table and plot."""
