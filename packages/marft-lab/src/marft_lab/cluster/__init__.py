"""Processes of a run on other machines, through Ray: which is imported where a recipe asks for it, and nowhere else."""
