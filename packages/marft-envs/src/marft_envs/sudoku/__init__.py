"""Sudokus in sizes 4 × 4, 6 × 6 and 9 × 9."""
