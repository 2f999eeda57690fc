"""Comparison of program outputs in separate processes that never run a program.

A text of a few hundred kilobytes can contain a hundred thousand lists. In the training process it stays text.
:mod:`marft_envs.code.comparison_process` decodes it, with limits on time and memory. A text beyond the limits counts as
a wrong answer. Otherwise a program could remove its own episode from the batch.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from marft.common.processes.process_pool import (
    HelperRequestError,
    NotStartedError,
    ProcessExitedError,
    ProcessPool,
    RequestFailedError,
    RequestTimeoutError,
)
from marft_envs.code.execution import FunctionCall, JudgeError, Outcome
from marft_envs.code.plain_values import encode
from marft_envs.code.problems import Case

# CPU seconds per text, plus CPU seconds per megabyte; a megabyte usually takes less than 1 s
SECONDS_PER_TEXT, SECONDS_PER_MB = 1.0, 4.0
MIN_SECONDS = 0.01  # minimum CPU seconds to read a text
WALL_PER_CPU, EXTRA_SECONDS = (
    10.0,
    30.0,
)  # wall-clock seconds per CPU second, plus a constant: other processes compete for the CPU
BYTES_PER_MB = 2**20
TOO_LONG_TEXT, TOO_LARGE_TEXT = "takes too long to read", "takes too much memory to read"


class UnreadableError(Exception):
    """Text beyond its limits, or without a valid value. The message continues the words "it returned"."""


class AssertResult(NamedTuple):
    """Result of an assert test: pass or fail, calls made or missing, and error message."""

    passed: bool
    calls: tuple[str, ...]
    message: str


class OutputReader:
    """Reader for the outputs of a single program.

    Args:
        seconds: CPU time for all texts of the program together.
    """

    def __init__(self, seconds: float) -> None:
        self._remaining_seconds = seconds

    def compare_outputs(
        self, cases: Sequence[Case], outcomes: Sequence[Outcome], tolerance: float
    ) -> list[tuple[Outcome, bool]]:
        """Compare outcomes with their cases; return each outcome in report form, with True if it is right.

        This call blocks.

        Raises:
            JudgeError: the comparison process cannot start.
        """
        return [self._compare(case, outcome, tolerance) for case, outcome in zip(cases, outcomes, strict=True)]

    def _compare(self, case: Case, outcome: Outcome, tolerance: float) -> tuple[Outcome, bool]:
        if not outcome.is_ok:
            return outcome, False
        is_call = isinstance(case.input, FunctionCall)
        expected = [text for text in map(_try_encode, case.expected) if text]
        rules = (case.as_json, case.as_set, case.absolute, case.relative)
        try:
            value_text, is_right = self._request("compare", outcome.value, is_call, expected, rules, tolerance)
        except UnreadableError as error:
            return Outcome("raised", None, f"it {'returned' if is_call else 'printed'} {error}"), False
        return Outcome("returned", value_text), is_right

    def read_assert_result(self, outcome: Outcome) -> AssertResult:
        """Read the result of an assert test from the jail.

        Raises:
            JudgeError: the comparison process cannot start.
        """
        if not outcome.is_ok:
            return AssertResult(False, (), outcome.error or outcome.status)
        try:
            passed, calls, message = self._request("told", outcome.value)
        except UnreadableError as error:
            return AssertResult(False, (), f"it tells {error}")
        return AssertResult(passed, tuple(calls), message)

    def _request(self, request_kind: str, text: str, *arguments: object) -> Any:
        seconds = min(SECONDS_PER_TEXT + SECONDS_PER_MB * len(text) / BYTES_PER_MB, self._remaining_seconds)
        if seconds < MIN_SECONDS:
            raise UnreadableError(f"what {TOO_LONG_TEXT}, with what came before it")
        request = [request_kind, seconds, text, *arguments]
        try:
            result, problem, seconds_used = self._send(request, seconds)
        except NotStartedError as error:
            raise JudgeError(f"no process compares results: {error}") from error
        except HelperRequestError as error:
            self._remaining_seconds -= seconds
            raise UnreadableError(_failure_reason(error) or f"what {error}") from error
        self._remaining_seconds -= seconds_used
        if problem:
            raise UnreadableError(problem)
        return result

    def _send(self, request: Sequence[object], seconds: float) -> Any:
        """Send a request; retry once if the process was killed for a reason unrelated to the text."""
        limit = WALL_PER_CPU * seconds + EXTRA_SECONDS
        try:
            return _helpers().request(request, limit)
        except ProcessExitedError as error:
            if _failure_reason(error):
                raise
        return _helpers().request(request, limit)


def _failure_reason(error: HelperRequestError) -> str:
    """Return the error caused by a text in its reader process; "" if the cause is uncertain."""
    if isinstance(error, RequestTimeoutError) or (
        isinstance(error, ProcessExitedError) and error.status == -signal.SIGPROF
    ):
        return f"what {TOO_LONG_TEXT}"
    if isinstance(error, RequestFailedError):
        return f"what {TOO_LARGE_TEXT}" if str(error).startswith("MemoryError") else f"what cannot be compared: {error}"
    return ""


def _try_encode(expected: object) -> str:
    """Encode a right value; return "" if a program cannot return it."""
    try:
        return encode(expected)
    except (TypeError, RecursionError):
        return ""


@functools.cache
def _helpers() -> ProcessPool:
    return ProcessPool("marft_envs.code.comparison_process")
