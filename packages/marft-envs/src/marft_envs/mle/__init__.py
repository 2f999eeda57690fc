"""Competitions that are won by programs, in the shape of MLE-bench: files, a metric, a leaderboard, medals."""
