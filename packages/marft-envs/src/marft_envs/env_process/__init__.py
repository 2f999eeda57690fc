"""Environments from packages with conflicting dependencies, each in a process with a separate Python."""
