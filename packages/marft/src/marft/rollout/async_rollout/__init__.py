"""Asynchronous rollouts: play episodes ahead of the training step, and reuse recent episodes."""
