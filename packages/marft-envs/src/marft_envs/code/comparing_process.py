"""Process that reads and compares the outputs of jailed programs. It never runs a program."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from marft.common.processes.helpers import limit_memory, serve
from marft.common.texts import cut
from marft_envs.code.judging import Call, Feed, Outcome
from marft_envs.code.plain import decode, shown
from marft_envs.code.problems import Case, passes
from marft_envs.code.reports import LONGEST

MEMORY_BYTES = 2**30


def compare(text: str, called: bool, right: list[str], rules: list[Any], tolerance: float) -> tuple[str, bool]:
    """Compare an outcome with its case; return the value in report form, and True if it is right.

    Raises:
        ValueError: the text has no valid value.
    """
    value = decode(text) if called else text
    case = Case(Call("") if called else Feed(""), tuple(_values(right)), *rules)
    is_right = passes(case, Outcome("returned", value), tolerance)
    return cut(shown(value) if called else repr(text.strip()), LONGEST), is_right


def _values(texts: Iterable[str]) -> Iterator[Any]:
    """Yield the values in the texts, without values that no program can return."""
    for text in texts:
        with suppress(ValueError):
            yield decode(text)


def told(text: str) -> tuple[bool, list[str], str]:
    """Parse an assert test's result: pass or fail, calls, and error message.

    Raises:
        ValueError: the text has another form.
    """
    held, calls, said = decode(text)
    if not (isinstance(held, bool) and isinstance(calls, list) and isinstance(said, str)):
        raise ValueError("no word of a test")
    return held, [call for call in calls if isinstance(call, str)], cut(said, LONGEST)


TASKS: dict[str, Callable[..., object]] = {"compare": compare, "told": told}


def answer(request: list[Any]) -> tuple[object, str, float]:
    """Run a request; return its result, an error message and the CPU seconds used.

    The message is "" on success; on failure the result is None. The process is killed if it exceeds its CPU limit.
    """
    task, seconds, *arguments = request
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return TASKS[task](*arguments), "", time.process_time() - began
    except ValueError as error:
        return None, f"{error}" or "no value", time.process_time() - began
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    limit_memory(MEMORY_BYTES)
    serve(answer)
