"""Verifiers: from what an agent wrote to whether it is right."""
