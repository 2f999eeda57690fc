"""Sessions run on threads of their own, so that code which blocks, hangs or raises loses only its own episode."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

from marft.common.faults import described, place_of
from marft.common.texts import one_line, raised

T = TypeVar("T")


class Closing(Protocol):
    """What several episodes share."""

    def counts(self) -> Mapping[str, float]: ...

    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closing)
GRACE_SECONDS = 0.5  # for a thread to answer after a time-out before it is given up
OPEN_FILES = 65536  # what is asked of the system: every thread's event loop keeps three open


class OverdueError(TimeoutError):
    """A call took longer than it may. What a call itself raises never is one."""


class RaisedError(Exception):
    """What somebody else's code raised, put in words on its own thread: to say it may hang, raise, or never end.

    Args:
        said: ``ValueError: boom``.
        place: ``environment.py:12``.
    """

    def __init__(self, said: str, place: str) -> None:
        super().__init__(f"{said} ({place})" if place else said)
        self.said, self.place = said, place


@lru_cache(maxsize=1)
def _for_functions() -> LoopThread:
    return LoopThread()


def awaited_elsewhere(said: Any) -> Any:
    """Return what a function returned; of an async one, what comes of it on a thread that all of them share, while this
    thread waits."""
    if not inspect.isawaitable(said):
        return said

    async def whole() -> Any:
        return await said

    return asyncio.run_coroutine_threadsafe(whole(), _for_functions().loop).result()


class LoopThread:
    """A daemon thread with an event loop. One session at a time lives on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(complain)
        self._under_way = 0  # calls
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="marft-session", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping and not self.loop.is_closed():
            with suppress(BaseException):  # a session's own task may raise SystemExit, which asyncio lets through
                self.loop.run_forever()
        with suppress(RuntimeError, asyncio.CancelledError):  # closed by a session, or cancelled in its turn
            self.loop.run_until_complete(_cancel_the_rest())
        with suppress(RuntimeError):
            self.loop.close()

    async def call(self, function: Callable[..., Awaitable[T] | T], *arguments: object, timeout: float | None) -> T:
        """Run ``function(*arguments)`` on this thread, awaiting what it returns if that is awaitable.

        Args:
            timeout: seconds; None for what keeps to a limit of its own.

        Raises:
            OverdueError: it took longer than ``timeout`` seconds.
        """
        return await self._finished(self._counted(_settled, function, arguments), timeout)

    async def call_theirs(
        self, function: Callable[..., Awaitable[T] | T], *arguments: object, timeout: float | None,
        passing: type[Exception] | tuple[()] = (),
    ) -> T:  # fmt: skip
        """:meth:`call`, for somebody else's code: whatever it raises comes as words.

        Args:
            passing: a kind of error that is ours, and comes as it is.

        Raises:
            OverdueError: it took longer than ``timeout`` seconds.
            RaisedError: it raised something, whatever that is.
        """
        return await self._finished(self._counted(in_words, function, arguments, passing), timeout)

    async def _finished(self, coroutine: Coroutine[object, object, T], timeout: float | None) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:  # a session has closed the loop
            coroutine.close()
            raise RaisedError(raised(error), "") from None
        try:
            async with asyncio.timeout(timeout) as limit:
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if limit.expired():
                raise OverdueError(f"it took over {timeout:g} s") from error
            raise
        except asyncio.CancelledError:
            if cancelled():
                raise
            raise RaisedError("CancelledError: the call cancelled itself", "") from None

    async def _counted(self, run: Callable[..., Awaitable[T]], *arguments: object) -> T:
        self._under_way += 1
        try:
            return await run(*arguments)
        finally:
            self._under_way -= 1

    async def _idle(self) -> bool:
        deadline = time.monotonic() + GRACE_SECONDS
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not self._under_way

    async def responsive(self) -> bool:
        """Whether it comes to an end with its calls: none blocks it, or goes on though it was cancelled."""
        return await self._answers(self._idle())

    async def vacated(self) -> bool:
        """Call off what a session has left behind → whether that came to an end."""
        return await self._answers(_cancel_the_rest())

    async def _answers(self, question: Coroutine[object, object, bool]) -> bool:
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self.loop)
        except RuntimeError:  # closed by a session
            question.close()
            return False
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), GRACE_SECONDS + 0.2)
        except TimeoutError:
            return False
        except asyncio.CancelledError:  # by what the session has left behind
            if cancelled():
                raise
            return False

    def later(self, function: Callable[[], object]) -> None:
        """Have ``function()`` run once the thread is free again, whatever comes of it."""
        coroutine = in_words(function, (), ())
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()

    def stop(self) -> None:
        self._stopping = True
        with suppress(RuntimeError):  # closed by a session
            self.loop.call_soon_threadsafe(self.loop.stop)


class LoopThreadPool:
    """A pool of loop threads. A thread that does not come back from a call is given up and counted; one whose session
    failed ends."""

    def __init__(self) -> None:
        allow_open_files()
        self._idle: list[LoopThread] = []
        self._slots: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}
        self._kept: dict[str, Closing] = {}
        self.given_up = 0
        self.not_closed = 0  # sessions whose ``close`` raised, or did not end in time

    def acquire(self) -> LoopThread:
        """A thread that nobody uses.

        Raises:
            ValueError: the system allows no more of them.
        """
        if self._idle:
            return self._idle.pop()
        try:
            return LoopThread()
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"the system allows no more sessions at a time ({error}): lower rollout.max_live_episodes, or allow "
                "more open files (ulimit -n) and threads (ulimit -u)"
            ) from error

    async def release(self, thread: LoopThread, suspect: bool) -> None:
        """Take a thread back; a ``suspect`` one (its session failed) serves nobody else."""
        free = (not suspect or await thread.responsive()) and await thread.vacated()
        self.given_up += not free
        if suspect or not free:
            thread.stop()  # takes effect should the call ever return
        else:
            self._idle.append(thread)

    def slots(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """What lets ``count`` calls of one kind be under way at a time, over all episodes."""
        loop = asyncio.get_running_loop()
        if name not in self._slots or self._slots[name][0] is not loop:
            self._slots[name] = loop, asyncio.Semaphore(count)
        return self._slots[name][1]

    def kept(self, name: str, make: Callable[[], Kept]) -> Kept:
        """What all episodes share: made when it is first asked for, closed with the pool."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast("Kept", self._kept[name])

    def counts(self) -> dict[str, float]:
        """What is counted by what they share, by the name of a metric."""
        return {name: count for shared in list(self._kept.values()) for name, count in shared.counts().items()}

    def close(self) -> None:
        for shared in self._kept.values():
            shared.close()
        self._kept.clear()
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


async def _settled(function: Callable[..., Awaitable[T] | T], arguments: tuple[object, ...]) -> T:
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except BaseException as error:
        if isinstance(error, Exception) or cancelled():
            raise
        raise RuntimeError(raised(error)) from error  # it would end the thread's loop, or look like our own


async def in_words(
    function: Callable[..., Awaitable[T] | T], arguments: tuple[object, ...], passing: type[Exception] | tuple[()]
) -> T:
    """``function(*arguments)``, awaited if that is awaitable; see :meth:`LoopThread.call_theirs`.

    Raises:
        RaisedError: it raised something that is not of the kind ``passing``.
    """
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except passing:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | GeneratorExit) and cancelled():
            raise
        raise RaisedError(raised(error), place_of(error)) from None


async def _cancel_the_rest() -> bool:
    """Cancel all other tasks of the running loop → whether they came to their end."""
    own, deadline = asyncio.current_task(), time.monotonic() + GRACE_SECONDS
    while left := [task for task in asyncio.all_tasks() if task is not own]:
        if time.monotonic() > deadline:
            return False
        for task in left:
            task.cancel()
        await asyncio.sleep(0.01)
    return True


def cancelled() -> bool:
    """Whether it is us who end the running task, and not somebody's code that raises ``CancelledError``."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop itself ends
        return True
    return task is None or task.cancelling() > 0


def complain(loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:  # noqa: ARG001
    """What nobody awaits and has failed, in one line that a terminal does not obey; for an event loop."""
    error = context.get("exception")
    said = described(error) if isinstance(error, BaseException) else str(context.get("message"))
    logging.getLogger("marft").warning("a task that nobody waits for failed: %s", one_line(said))
