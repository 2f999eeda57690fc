"""Losses, one a file: pure functions of log-probabilities and advantages."""
