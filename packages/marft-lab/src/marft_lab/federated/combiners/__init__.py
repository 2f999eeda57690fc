"""Aggregation rules of a federation, one class per file."""
