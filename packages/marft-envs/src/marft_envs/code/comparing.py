"""What programs return and print is read and compared in processes of their own, which never run a program.

A text of a few hundred kilobytes can hold a hundred thousand lists. In the process that trains it stays a text; here
it is sent to :mod:`marft_envs.code.comparing_process`, which has limits of time and memory. A text that goes beyond
them is a wrong answer: were it no answer, a program could have its attempt thrown out of the batch.
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

SECONDS, SECONDS_PER_MB = 1.0, 4.0  # of processor time for a text; one takes less than 1 s for a megabyte
LEAST = 0.01  # seconds for a text to be read at all
GRACE, SPARE = 10.0, 30.0  # seconds on the clock for each of processor time, and in any case: others compute too
MEGABYTE = 2**20
TOO_LONG, TOO_LARGE = "takes too long to read", "takes too much memory to read"


class UnreadableError(Exception):
    """A text cannot be read within its limits, or is that of no value; the message goes on from "it returned"."""


class Told(NamedTuple):
    """What a test says that is code: whether it held, calls that it made or lacks, and its error."""

    held: bool
    calls: tuple[str, ...]
    said: str


class Reader:
    """Has the texts of one program read.

    Args:
        seconds: of processor time, for all of its texts together.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def compared(self, cases: Sequence[Case], found: Sequence[Outcome], tolerance: float) -> list[tuple[Outcome, bool]]:
        """Hold outcomes to their cases → each as a report shows it, and whether it is right. Blocks.

        Raises:
            JudgingError: there is no process to do it.
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
        """Read what a test says in the jail.

        Raises:
            JudgingError: there is no process to do it.
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
        """Have a request answered, once more where its process was killed for another reason than the text."""
        limit = GRACE * seconds + SPARE
        try:
            return _helpers().ask(request, limit)
        except DiedError as error:
            if _why(error):
                raise
        return _helpers().ask(request, limit)


def _why(error: HelperError) -> str:
    """Return the error that a text caused in the process that read it; "" if the cause is uncertain."""
    if isinstance(error, TooSlowError) or (isinstance(error, DiedError) and error.status == -signal.SIGPROF):
        return f"what {TOO_LONG}"
    if isinstance(error, FailedError):
        return f"what {TOO_LARGE}" if str(error).startswith("MemoryError") else f"what cannot be compared: {error}"
    return ""


def _encoded(right: object) -> str:
    """The text of a right value; "" of one that no program can return."""
    try:
        return encode(right)
    except (TypeError, RecursionError):
        return ""


@functools.cache
def _helpers() -> Helpers:
    return Helpers("marft_envs.code.comparing_process")
