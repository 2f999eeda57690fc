"""Errors that are nobody's invariant and nobody's typing mistake."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot go on, for a reason outside MARFT: the message says which and what to do."""
