"""Matches between the versions of a run with swapped sides, ratings, and a report."""
