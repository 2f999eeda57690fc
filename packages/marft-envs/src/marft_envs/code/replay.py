"""Tests that are code, in the jail: run with what a program has returned, which is not there itself. Standard
library alone.

A test calls a function and looks at what comes of it. Here the function stands for a record: of calls that have been
made elsewhere, and what they returned. Where the record lacks a call, the test says which.
"""

from __future__ import annotations

import builtins
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marft_envs.code.plain import decode, encode

SEED = 0  # of tests that draw
RECORD = "record.jsonl"  # a line for each call: ``[call, fine, value]``
NO_VALUE = "it returned no value"
Told = tuple[bool, list[str], str]  # whether it held, calls that were made or are lacking, what it says


class _UnknownError(BaseException):
    """A call of which nothing is recorded; tests that expect errors do not catch it."""


def recording(scope: dict[str, Any], source: str, names: list[str]) -> Told:
    """Run a test with the functions that are there → the calls that it made of those that are named."""
    calls: list[str] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(encode([name, list(arguments), keywords]))
            return function(*arguments, **keywords)

        return call

    return _told(scope, source, {name: recorded(name, scope[name]) for name in names if name in scope}, calls)


def read_record() -> dict[str, tuple[bool, str]]:
    """What is recorded of each call: ``True`` and the text of a value, or ``False`` and the name of an error."""
    with Path(RECORD).open(encoding="utf-8") as file:
        return {call: (fine, value) for call, fine, value in map(json.loads, file)}


def replaying(scope: dict[str, Any], source: str, names: list[str], record: Mapping[str, tuple[bool, str]]) -> Told:
    """Run a test with what is recorded of each call."""
    lacking: list[str] = []

    def replayed(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            key = encode([name, list(arguments), keywords])
            if key not in record:
                lacking.append(key)
                raise _UnknownError(name)
            fine, value = record[key]
            if not fine:
                raise error_called(value)
            try:
                return decode(value)
            except ValueError:  # a test may expect one; of a value that cannot be read nobody does
                raise RuntimeError(NO_VALUE) from None

        return call

    return _told(scope, source, {name: replayed(name) for name in names}, lacking)


def error_called(name: str) -> Exception:
    """The built-in error of a name, or another one."""
    found = getattr(builtins, name, None)
    known = isinstance(found, type) and issubclass(found, Exception)
    return found() if known and found is not None else RuntimeError(name)


def _told(scope: dict[str, Any], source: str, stand_ins: Mapping[str, Any], calls: list[str]) -> Told:
    random.seed(SEED)
    scope = {**scope, **stand_ins, "candidate": next(iter(stand_ins.values()), None)}
    try:
        exec(compile(source, "test.py", "exec", dont_inherit=True), scope)
    except BaseException as error:  # noqa: BLE001  whatever a test raises
        return False, calls, type(error).__name__
    return True, calls, ""
