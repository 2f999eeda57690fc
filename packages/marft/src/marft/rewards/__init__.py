"""Rewards: answer verifiers, composable reward terms and judges."""
