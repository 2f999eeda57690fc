"""Environments from ``verifiers`` on a separate Python, where their rollouts and rubrics run."""
