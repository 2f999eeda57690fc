"""Sessions run on threads of their own, so that code which blocks, hangs or raises loses only its own episode."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from marft.texts import raised

T = TypeVar("T")
GRACE_SECONDS = 0.5  # for a thread to answer after a time-out before it is given up
OPEN_FILES = 65536  # what is asked of the system: every thread's event loop keeps three open


class HostThread:
    """A daemon thread with an event loop. One session at a time lives on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._under_way = 0  # calls
        self._thread = threading.Thread(target=self._serve, name="marft-session", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    async def call(self, function: Callable[..., Awaitable[T] | T], *arguments: Any, timeout: float | None) -> T:
        """Run ``function(*arguments)`` on this thread, awaiting what it returns if that is awaitable.

        Args:
            timeout: seconds; None for what keeps to a limit of its own.

        Raises:
            TimeoutError: it took longer than ``timeout`` seconds.
        """
        future = asyncio.run_coroutine_threadsafe(self._counted(function, arguments), self.loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout)

    async def _counted(self, function: Callable[..., Awaitable[T] | T], arguments: tuple[Any, ...]) -> T:
        self._under_way += 1
        try:
            return await _settle(function, arguments)
        finally:
            self._under_way -= 1

    async def _idle(self) -> None:
        while self._under_way:
            await asyncio.sleep(0.01)

    async def responsive(self) -> bool:
        """Whether it comes to an end with its calls: none blocks it, or goes on though it was called off."""
        answered = asyncio.run_coroutine_threadsafe(self._idle(), self.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(answered), GRACE_SECONDS)
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


class Host:
    """A pool of host threads. A thread that does not come back from a call is given up and counted."""

    def __init__(self) -> None:
        allow_open_files()
        self._idle: list[HostThread] = []
        self._slots: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}
        self.given_up = 0

    def acquire(self) -> HostThread:
        """A thread that nobody uses.

        Raises:
            ValueError: the system allows no more of them.
        """
        if self._idle:
            return self._idle.pop()
        try:
            return HostThread()
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"the system allows no more sessions at a time ({error}): lower rollout.max_live_episodes, or allow "
                "more open files (ulimit -n) and threads (ulimit -u)"
            ) from error

    async def release(self, thread: HostThread, suspect: bool) -> None:
        """Take a thread back; a ``suspect`` one (its session timed out) only if it still answers."""
        if suspect and not await thread.responsive():
            self.given_up += 1
            thread.stop()  # takes effect should the call ever return
            return
        self._idle.append(thread)

    def slots(self, name: str, count: int) -> asyncio.Semaphore:
        """What lets ``count`` calls of one kind be under way at a time, over all episodes."""
        loop = asyncio.get_running_loop()
        if name not in self._slots or self._slots[name][0] is not loop:
            self._slots[name] = loop, asyncio.Semaphore(count)
        return self._slots[name][1]

    def close(self) -> None:
        for thread in self._idle:
            thread.stop()
        self._idle.clear()


def allow_open_files() -> None:
    """Raise the soft limit on open files, which is often 1,024, towards the hard one."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _settle(function: Callable[..., Awaitable[T] | T], arguments: tuple[Any, ...]) -> Coroutine[Any, Any, T]:
    async def run() -> T:
        try:
            result = function(*arguments)
            return await result if isinstance(result, Awaitable) else result
        except BaseException as error:
            if isinstance(error, Exception) or _called_off():
                raise
            raise RuntimeError(raised(error)) from error  # theirs would end the thread's loop, or look like our own

    return run()


def _called_off() -> bool:
    """Whether it is us who end the call."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop itself ends
        return True
    return task is None or task.cancelling() > 0
