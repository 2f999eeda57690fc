"""The world of instructions that can be checked, in the manner of IFEval (Zhou et al. 2023): one file a family."""
