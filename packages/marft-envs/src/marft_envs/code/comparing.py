"""Comparison of program outputs in separate processes that never run a program.

A text of a few hundred kilobytes can contain a hundred thousand lists. In the training process it stays text.
:mod:`marft_envs.code.comparing_process` decodes it, with limits on time and memory. A text beyond the limits counts as
a wrong answer. Otherwise a program could remove its own episode from the batch.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from marft.common.processes.helpers import DiedError, FailedError, HelperError, Helpers, NotStartedError, TooSlowError
from marft_envs.code.judging import Call, JudgingError, Outcome
from marft_envs.code.plain import encode
from marft_envs.code.problems import Case

# CPU seconds per text, plus CPU seconds per megabyte; a megabyte usually takes less than 1 s
SECONDS, SECONDS_PER_MB = 1.0, 4.0
LEAST = 0.01  # minimum CPU seconds to read a text
GRACE, SPARE = 10.0, 30.0  # wall-clock seconds per CPU second, plus a constant: other processes compete for the CPU
MEGABYTE = 2**20
TOO_LONG, TOO_LARGE = "takes too long to read", "takes too much memory to read"


class UnreadableError(Exception):
    """Text beyond its limits, or without a valid value. The message continues the words "it returned"."""


class Told(NamedTuple):
    """Result of an assert test: pass or fail, calls made or missing, and error message."""

    held: bool
    calls: tuple[str, ...]
    said: str


class Reader:
    """Reader for the outputs of a single program.

    Args:
        seconds: CPU time for all texts of the program together.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def compared(self, cases: Sequence[Case], found: Sequence[Outcome], tolerance: float) -> list[tuple[Outcome, bool]]:
        """Compare outcomes with their cases; return each outcome in report form, with True if it is right.

        This call blocks.

        Raises:
            JudgingError: the comparison process cannot start.
        """
        return [self._compared(case, outcome, tolerance) for case, outcome in zip(cases, found, strict=True)]

    def _compared(self, case: Case, outcome: Outcome, tolerance: float) -> tuple[Outcome, bool]:
        if not outcome.fine:
            return outcome, False
        called = isinstance(case.given, Call)
        right = [text for text in map(_encoded, case.right) if text]
        rules = (case.as_json, case.as_set, case.absolute, case.relative)
        try:
            shown, is_right = self._ask("compare", outcome.value, called, right, rules, tolerance)
        except UnreadableError as error:
            return Outcome("raised", None, f"it {'returned' if called else 'printed'} {error}"), False
        return Outcome("returned", shown), is_right

    def told(self, outcome: Outcome) -> Told:
        """Read the result of an assert test from the jail.

        Raises:
            JudgingError: the comparison process cannot start.
        """
        if not outcome.fine:
            return Told(False, (), outcome.said or outcome.how)
        try:
            held, calls, said = self._ask("told", outcome.value)
        except UnreadableError as error:
            return Told(False, (), f"it tells {error}")
        return Told(held, tuple(calls), said)

    def _ask(self, what: str, text: str, *rest: object) -> Any:
        seconds = min(SECONDS + SECONDS_PER_MB * len(text) / MEGABYTE, self._left)
        if seconds < LEAST:
            raise UnreadableError(f"what {TOO_LONG}, with what came before it")
        request = [what, seconds, text, *rest]
        try:
            found, why, spent = self._answered(request, seconds)
        except NotStartedError as error:
            raise JudgingError(f"no process compares results: {error}") from error
        except HelperError as error:
            self._left -= seconds
            raise UnreadableError(_why(error) or f"what {error}") from error
        self._left -= spent
        if why:
            raise UnreadableError(why)
        return found

    def _answered(self, request: Sequence[object], seconds: float) -> Any:
        """Send a request; retry once if the process was killed for a reason unrelated to the text."""
        limit = GRACE * seconds + SPARE
        try:
            return _helpers().ask(request, limit)
        except DiedError as error:
            if _why(error):
                raise
        return _helpers().ask(request, limit)


def _why(error: HelperError) -> str:
    """Return the error caused by a text in its reader process; "" if the cause is uncertain."""
    if isinstance(error, TooSlowError) or (isinstance(error, DiedError) and error.status == -signal.SIGPROF):
        return f"what {TOO_LONG}"
    if isinstance(error, FailedError):
        return f"what {TOO_LARGE}" if str(error).startswith("MemoryError") else f"what cannot be compared: {error}"
    return ""


def _encoded(right: object) -> str:
    """Encode a right value; return "" if a program cannot return it."""
    try:
        return encode(right)
    except (TypeError, RecursionError):
        return ""


@functools.cache
def _helpers() -> Helpers:
    return Helpers("marft_envs.code.comparing_process")
