"""Benefit of the team relative to its cost: comparison with a single agent, and with variants of the team."""
