"""Engines in subprocesses, optionally with their own Python environments."""
