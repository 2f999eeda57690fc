"""Environments of Gymnasium and PettingZoo as games of words: what they show is told, what they allow is enumerated."""
