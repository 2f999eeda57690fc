"""Checks as pure functions on the evidence, with a module per topic."""
