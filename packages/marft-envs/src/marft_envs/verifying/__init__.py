"""Environments of ``verifiers`` in a Python of their own: their rollouts and rubrics run there, and ask the team."""
