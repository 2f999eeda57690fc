"""Proposers of new instructions, one class per file."""
