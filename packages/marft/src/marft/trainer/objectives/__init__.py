"""Objectives, one per file: pure functions from log-probabilities and advantages to losses."""
