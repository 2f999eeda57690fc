"""Leagues: learning against a pool of past versions, and who beats whom."""
