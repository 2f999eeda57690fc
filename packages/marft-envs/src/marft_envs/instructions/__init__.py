"""Verifiable instructions, as in IFEval (Zhou et al. 2023), with a module per family."""
