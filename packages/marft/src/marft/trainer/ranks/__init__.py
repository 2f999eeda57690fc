"""Distributed learner: process groups, rank workers, and their control from the main process."""
