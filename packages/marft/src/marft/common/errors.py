"""Errors with a cause outside MARFT: failed runs, episodes and rows."""

from __future__ import annotations

from typing import Literal


class UserError(ValueError):
    """Error that the user can fix: invalid input or configuration. The message states the cause and the remedy."""


class RunError(RuntimeError):
    """Error that ends a run for a reason outside MARFT; the message states the cause and the remedy."""


class EpisodeFailedError(Exception):
    """Episode without a score.

    Args:
        status: ``"failed"`` or ``"timed_out"``; any other value counts as ``"failed"``.
        reason: human-readable cause.
    """

    def __init__(self, status: Literal["failed", "timed_out"], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal["failed", "timed_out"] = (
            "timed_out" if status == "timed_out" else "failed"
        )  # callers may pass other values
        self.reason = reason


class RowFailedError(EpisodeFailedError):
    """Row without a sample; the engine continues with the remaining rows.

    Args:
        reason: human-readable cause.
        grammar_failed: the text could not satisfy the requested grammar.
    """

    def __init__(self, reason: str, grammar_failed: bool = False) -> None:
        super().__init__("failed", reason)
        self.grammar_failed = grammar_failed
