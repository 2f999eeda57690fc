"""Rollouts: task sampling, episode runners, forked episodes, and the batch for each training step."""
