"""Engines in processes of their own, in Python environments of their own."""
