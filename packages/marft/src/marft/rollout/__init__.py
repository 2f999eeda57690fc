"""Rollouts: which tasks are played, by which processes, when, and what a training step learns from."""
