"""Timing for calls: total duration, and the longest blocking stretch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from marft_envs.vetting.plays import Call


class Stopwatch:
    """Stopwatch for a call. It measures each stretch between two awaits."""

    def __init__(self) -> None:
        self._began = self._held = self._busy = 0.0

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call ``function(*arguments)`` and await the result if it is awaitable."""
        self._began, self._held, self._busy = time.perf_counter(), 0.0, 0.0
        result = self._stretch(lambda: function(*arguments))
        return await _Watched(result, self._stretch) if isinstance(result, Awaitable) else result

    def call(self, name: str) -> Call:
        """Return the timing for the last call, finished or not."""
        return Call(name, time.perf_counter() - self._began, self._held, self._busy)

    def _stretch(self, go_on: Callable[[], Any]) -> Any:
        began, computed = time.perf_counter(), time.thread_time()
        try:
            return go_on()
        finally:
            held, busy = time.perf_counter() - began, time.thread_time() - computed
            if held > self._held:
                self._held, self._busy = held, busy


class _Watched:
    """Awaitable that runs each stretch through a function."""

    def __init__(self, awaitable: Awaitable[Any], stretch: Callable[[Callable[[], Any]], Any]) -> None:
        self.awaitable, self.stretch = awaitable, stretch

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.stretch(self.awaitable.__await__)
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waits_for = self.stretch(step)
            except StopIteration as done:
                return done.value
            try:
                sent = yield waits_for
                step = partial(inner.send, sent)
            except BaseException as error:  # noqa: BLE001  it is the inner one's, cancellation included
                step = partial(inner.throw, error)
