"""Sokoban: push boxes onto goals."""
