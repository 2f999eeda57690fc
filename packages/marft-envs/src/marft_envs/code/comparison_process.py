"""Process that reads and compares the outputs of jailed programs. It never runs a program."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from marft.common.errors import UserError
from marft.common.processes.process_pool import limit_memory, serve
from marft.common.texts import truncate
from marft_envs.code.execution import FunctionCall, Outcome, StdinInput
from marft_envs.code.plain_values import decode, safe_repr
from marft_envs.code.problems import MAX_VALUE, Case, outcome_passes

MEMORY_BYTES = 2**30


def compare_texts(
    text: str, is_call: bool, expected: list[str], rules: list[Any], tolerance: float
) -> tuple[str, bool]:
    """Compare an outcome with its case; return the value in report form, and True if it is right.

    Raises:
        UserError: the text has no valid value.
    """
    value = decode(text) if is_call else text
    case = Case(FunctionCall("") if is_call else StdinInput(""), tuple(_decode_values(expected)), *rules)
    is_right = outcome_passes(case, Outcome("returned", value), tolerance)
    return truncate(safe_repr(value) if is_call else repr(text.strip()), MAX_VALUE), is_right


def _decode_values(texts: Iterable[str]) -> Iterator[Any]:
    """Yield the values in the texts, without values that no program can return."""
    for text in texts:
        with suppress(ValueError):
            yield decode(text)


def parse_assert_result(text: str) -> tuple[bool, list[str], str]:
    """Parse an assert test's result: pass or fail, calls, and error message.

    Raises:
        UserError: the text has another form.
    """
    passed, calls, message = decode(text)
    if not (isinstance(passed, bool) and isinstance(calls, list) and isinstance(message, str)):
        raise UserError("no word of a test")
    return passed, [call for call in calls if isinstance(call, str)], truncate(message, MAX_VALUE)


REQUESTS: dict[str, Callable[..., object]] = {"compare": compare_texts, "told": parse_assert_result}


def run_request(request: list[Any]) -> tuple[object, str, float]:
    """Run a request; return its result, an error message and the CPU seconds used.

    The message is "" on success; on failure the result is None. The process is killed if it exceeds its CPU limit.
    """
    task, seconds, *arguments = request
    started_at = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return REQUESTS[task](*arguments), "", time.process_time() - started_at
    except ValueError as error:
        return None, f"{error}" or "no value", time.process_time() - started_at
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    limit_memory(MEMORY_BYTES)
    serve(run_request)
