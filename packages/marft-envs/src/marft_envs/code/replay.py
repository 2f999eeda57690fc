"""Assert tests inside the jail, run on recorded results instead of the program. Standard library only.

A test calls a function and checks its result. Here a record replaces the function: calls made elsewhere, with their
results. If the record lacks a call, the test reports that call.
"""

from __future__ import annotations

import builtins
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marft_envs.code.plain_values import decode, encode

SEED = 0  # seed for tests that draw random numbers
RECORD = "record.jsonl"  # one line per call: ``[call, fine, value]``
NO_VALUE = "it returned no value"
AssertResult = tuple[bool, list[str], str]  # pass or fail, calls made or missing, error message


class _UnknownError(BaseException):
    """Call without a recorded result. It is not an ``Exception``, so tests that expect errors do not catch it."""


def run_recording(scope: dict[str, Any], source: str, names: list[str]) -> AssertResult:
    """Run a test on the reference functions; return its result with the calls to ``names``."""
    calls: list[str] = []

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(encode([name, list(arguments), keywords]))
            return function(*arguments, **keywords)

        return call

    return _run_test(scope, source, {name: wrap(name, scope[name]) for name in names if name in scope}, calls)


def read_record() -> dict[str, tuple[bool, str]]:
    """Read the recorded results by call: ``True`` and a value's text, or ``False`` and an error's name."""
    with Path(RECORD).open(encoding="utf-8") as file:
        return {call: (fine, value) for call, fine, value in map(json.loads, file)}


def run_replaying(
    scope: dict[str, object], source: str, names: list[str], record: Mapping[str, tuple[bool, str]]
) -> AssertResult:
    """Run a test on recorded results."""
    missing: list[str] = []

    def wrap(name: str) -> Callable[..., object]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            key = encode([name, list(arguments), keywords])
            if key not in record:
                missing.append(key)
                raise _UnknownError(name)
            fine, value = record[key]
            if not fine:
                raise builtin_error(value)
            try:
                return decode(value)
            except ValueError:  # not ValueError, which a test may expect from the program
                raise RuntimeError(NO_VALUE) from None

        return call

    return _run_test(scope, source, {name: wrap(name) for name in names}, missing)


def builtin_error(name: str) -> Exception:
    """Create the built-in error with this name, else a RuntimeError."""
    builtin = getattr(builtins, name, None)
    is_error = isinstance(builtin, type) and issubclass(builtin, Exception)
    return builtin() if is_error and builtin is not None else RuntimeError(name)


def _run_test(scope: dict[str, object], source: str, stubs: Mapping[str, object], calls: list[str]) -> AssertResult:
    random.seed(SEED)
    scope = {**scope, **stubs, "candidate": next(iter(stubs.values()), None)}
    try:
        exec(compile(source, "test.py", "exec", dont_inherit=True), scope)
    except BaseException as error:  # noqa: BLE001  whatever a test raises
        return False, calls, type(error).__name__
    return True, calls, ""
