"""Replay episodes from a chosen action, for credit assignment with forks; one file per mode."""
