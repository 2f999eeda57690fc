"""Errors that are nobody's invariant and nobody's typing mistake."""

from __future__ import annotations

from typing import Literal


class RunError(RuntimeError):
    """A run cannot go on, for a reason outside MARFT: the message says which and what to do."""


class EpisodeFailedError(Exception):
    """An episode that cannot be scored, with its status and a reason for people."""

    def __init__(self, status: Literal["failed", "timed_out"], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal["failed", "timed_out"] = (
            "timed_out" if status == "timed_out" else "failed"
        )  # whoever raises it
        self.reason = reason


class RowFailedError(EpisodeFailedError):
    """A row that could not be sampled for a reason of its own; the engine goes on with all others.

    Args:
        form: whether the text could not be held to the form that was asked for.
    """

    def __init__(self, reason: str, form: bool = False) -> None:
        super().__init__("failed", reason)
        self.form = form
