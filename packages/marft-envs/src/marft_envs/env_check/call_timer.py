"""Timing for calls: total duration, and the longest blocking stretch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from marft_envs.env_check.records import TimedCall


class CallTimer:
    """Stopwatch for a call. It measures each stretch between two awaits."""

    def __init__(self) -> None:
        self._started_at = self._blocking = self._cpu_seconds = 0.0

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call ``function(*arguments)`` and await the result if it is awaitable."""
        self._started_at, self._blocking, self._cpu_seconds = time.perf_counter(), 0.0, 0.0
        result = self._time_stretch(lambda: function(*arguments))
        return await _TimedAwaitable(result, self._time_stretch) if isinstance(result, Awaitable) else result

    def last_call(self, name: str) -> TimedCall:
        """Return the timing for the last call, finished or not."""
        return TimedCall(name, time.perf_counter() - self._started_at, self._blocking, self._cpu_seconds)

    def _time_stretch(self, function: Callable[[], Any]) -> Any:
        started_at, cpu_start = time.perf_counter(), time.thread_time()
        try:
            return function()
        finally:
            elapsed, cpu_seconds = time.perf_counter() - started_at, time.thread_time() - cpu_start
            if elapsed > self._blocking:
                self._blocking, self._cpu_seconds = elapsed, cpu_seconds


class _TimedAwaitable:
    """Awaitable that runs each stretch through a function."""

    def __init__(self, awaitable: Awaitable[Any], time_stretch: Callable[[Callable[[], Any]], Any]) -> None:
        self.awaitable, self.time_stretch = awaitable, time_stretch

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.time_stretch(self.awaitable.__await__)
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waits_for = self.time_stretch(step)
            except StopIteration as done:
                return done.value
            try:
                sent = yield waits_for
                step = partial(inner.send, sent)
            except BaseException as error:  # noqa: BLE001  it is the inner one's, cancellation included
                step = partial(inner.throw, error)
