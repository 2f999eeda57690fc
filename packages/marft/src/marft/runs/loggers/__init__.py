"""Metric loggers beside the metrics log, with a module for each program."""
