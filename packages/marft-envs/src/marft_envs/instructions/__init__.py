"""Verifiable instructions, as in IFEval (Zhou et al. 2023)."""
