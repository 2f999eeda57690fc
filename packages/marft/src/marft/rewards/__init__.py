"""Rewards: verifiers of answers, the terms that a recipe composes, judges."""
