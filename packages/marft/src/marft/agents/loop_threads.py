"""Threads with event loops for sessions: code that blocks, hangs or raises loses only its own episode."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

from marft.common.error_origin import describe_error, error_location
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.texts import format_error, single_line

logger = get_logger(__name__)
T = TypeVar("T")


class SharedResource(Protocol):
    """Resource shared by several episodes."""

    def counts(self) -> Mapping[str, float]:
        """Return counters by metric name."""

    def close(self) -> None:
        """Release the resource."""


Resource = TypeVar("Resource", bound=SharedResource)
GRACE_SECONDS = 0.5  # seconds a thread has to respond after a timeout before it is abandoned
MAX_OPEN_FILES = 65536  # requested limit on open files: each thread's event loop keeps three open


class CallTimeoutError(TimeoutError):
    """Call that exceeded its timeout. An error raised by the called function never has this type."""


class UserCodeError(Exception):
    """Error raised by user code, converted to text on the user code's own thread.

    Formatting such an error may hang, raise or never end, so it happens there.

    Args:
        message: for example ``ValueError: boom``.
        location: for example ``environment.py:12``.
    """

    def __init__(self, message: str, location: str) -> None:
        super().__init__(f"{message} ({location})" if location else message)
        self.message, self.location = message, location


@lru_cache(maxsize=1)
def _function_thread() -> LoopThread:
    return Context().run(LoopThread)  # of no run, because all share it


def await_on_thread(result: Any) -> Any:
    """Return a function's result; await an awaitable result on a shared thread while this thread waits."""
    if not inspect.isawaitable(result):
        return result

    async def wait_for_result() -> Any:
        """Await the result on the shared thread."""
        return await result

    return asyncio.run_coroutine_threadsafe(wait_for_result(), _function_thread().loop).result()


class LoopThread:
    """Daemon thread with an event loop. It runs one session at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(log_task_error)
        self._active_calls = 0  # calls in progress
        self._stopping = False
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._serve,), name="marft-session", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping and not self.loop.is_closed():
            with suppress(BaseException):  # a session's own task may raise SystemExit, which asyncio does not stop
                self.loop.run_forever()
        with suppress(RuntimeError, asyncio.CancelledError):  # a session closed or cancelled the loop
            self.loop.run_until_complete(_cancel_other_tasks())
        with suppress(RuntimeError):
            self.loop.close()

    async def call(self, function: Callable[..., Awaitable[T] | T], *arguments: object, timeout: float | None) -> T:
        """Run ``function(*arguments)`` on this thread and await an awaitable result.

        Args:
            timeout: in seconds; None for functions with a timeout of their own.

        Raises:
            CallTimeoutError: the call took longer than ``timeout`` seconds.
        """
        return await self._run_coroutine(self._run_counted(_run_function, function, arguments), timeout)

    async def call_user_code(
        self,
        function: Callable[..., Awaitable[T] | T],
        *arguments: object,
        timeout: float | None,
        passthrough: type[Exception] | tuple[()] = (),
    ) -> T:
        """Run user code like :meth:`call`, with every error converted to text.

        Args:
            passthrough: type of internal errors that pass unchanged.

        Raises:
            CallTimeoutError: the call took longer than ``timeout`` seconds.
            UserCodeError: the call raised any other error.
        """
        return await self._run_coroutine(self._run_counted(run_user_code, function, arguments, passthrough), timeout)

    def _submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:  # a session closed the loop
            coroutine.close()
            raise UserCodeError(format_error(error), "") from None

    async def _run_coroutine(self, coroutine: Coroutine[object, object, T], timeout: float | None) -> T:
        future = self._submit(coroutine)
        try:
            async with asyncio.timeout(timeout) as limit:
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if limit.expired():
                raise CallTimeoutError(f"it took over {timeout:g} s") from error
            raise
        except asyncio.CancelledError:
            if is_canceled():
                raise
            raise UserCodeError("CancelledError: the call cancelled itself", "") from None

    async def _run_counted(self, run: Callable[..., Awaitable[T]], *arguments: object) -> T:
        self._active_calls += 1
        try:
            return await run(*arguments)
        finally:
            self._active_calls -= 1

    async def _wait_idle(self) -> bool:
        deadline = time.monotonic() + GRACE_SECONDS
        while self._active_calls and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not self._active_calls

    async def is_responsive(self) -> bool:
        """Return true if all calls on this thread end within the grace period."""
        return await self._ask(self._wait_idle())

    async def cancel_tasks(self) -> bool:
        """Cancel leftover tasks from a session; return true if they ended."""
        return await self._ask(_cancel_other_tasks())

    async def _ask(self, question: Coroutine[object, object, bool]) -> bool:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._submit(question)), GRACE_SECONDS + 0.2)
        except (TimeoutError, UserCodeError):
            return False
        except asyncio.CancelledError:  # cancelled by leftovers from the session
            if is_canceled():
                raise
            return False

    def call_later(self, function: Callable[[], object]) -> None:
        """Run ``function()`` on the thread after its current work, and ignore errors."""
        with suppress(UserCodeError):
            self._submit(run_user_code(function, (), ()))

    def stop(self) -> None:
        """Stop the event loop, which ends the thread."""
        self._stopping = True
        with suppress(RuntimeError):  # a session closed the loop
            self.loop.call_soon_threadsafe(self.loop.stop)


class LoopThreadPool:
    """Pool of loop threads.

    The pool abandons and counts a thread that does not return from a call. It ends a thread whose session failed.
    """

    def __init__(self) -> None:
        allow_open_files()
        self._idle: list[LoopThread] = []
        self._slots: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}
        self._shared: dict[str, SharedResource] = {}
        self.blocked_threads = 0
        self.failed_closes = 0  # sessions whose ``close`` raised or exceeded its timeout

    def acquire(self) -> LoopThread:
        """Return an unused thread.

        Raises:
            UserError: the operating system allows no more threads or open files.
        """
        if self._idle:
            return self._idle.pop()
        try:
            return LoopThread()
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"the system allows no more sessions at a time ({error}): lower rollout.max_concurrent_episodes, or "
                "allow more open files (ulimit -n) and threads (ulimit -u)"
            ) from error

    async def release(self, thread: LoopThread, failed: bool) -> None:
        """Take a thread back; a ``failed`` thread (its session failed) is not used again."""
        free = (not failed or await thread.is_responsive()) and await thread.cancel_tasks()
        self.blocked_threads += not free
        if failed or not free:
            thread.stop()  # takes effect if the call ever returns
        else:
            self._idle.append(thread)

    def slots(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """Return a semaphore that limits concurrent calls under ``name``, over all episodes, to ``count``."""
        loop = asyncio.get_running_loop()
        if name not in self._slots or self._slots[name][0] is not loop:
            self._slots[name] = loop, asyncio.Semaphore(count)
        return self._slots[name][1]

    def get_shared(self, name: str, make: Callable[[], Resource]) -> Resource:
        """Return the shared resource under ``name``, created at the first request and closed with the pool."""
        if name not in self._shared:
            self._shared[name] = make()
        return cast("Resource", self._shared[name])

    def counts(self) -> dict[str, float]:
        """Return the shared resources' counters by metric name."""
        return {name: count for shared in list(self._shared.values()) for name, count in shared.counts().items()}

    def close(self) -> None:
        """Close the shared resources and stop the idle threads."""
        for shared in self._shared.values():
            shared.close()
        self._shared.clear()
        for thread in self._idle:
            thread.stop()
        self._idle.clear()


def allow_open_files() -> None:
    """Raise the soft limit on open files, often 1,024, towards the hard limit."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system may allow less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run_function(function: Callable[..., Awaitable[T] | T], arguments: tuple[object, ...]) -> T:
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except BaseException as error:
        if isinstance(error, Exception) or is_canceled():
            raise
        # the original would end the thread's loop or look like our own cancellation
        raise RuntimeError(format_error(error)) from error


async def run_user_code(
    function: Callable[..., Awaitable[T] | T], arguments: tuple[object, ...], passthrough: type[Exception] | tuple[()]
) -> T:
    """Run ``function(*arguments)`` and await an awaitable result; see :meth:`LoopThread.call_user_code`.

    Raises:
        UserCodeError: the function raised an error that is not of the type ``passthrough``.
    """
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except passthrough:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | GeneratorExit) and is_canceled():
            raise
        raise UserCodeError(format_error(error), error_location(error)) from None


async def _cancel_other_tasks() -> bool:
    """Cancel every other task on the running loop; return true if the tasks ended within the grace period."""
    own_task, deadline = asyncio.current_task(), time.monotonic() + GRACE_SECONDS
    while pending := [task for task in asyncio.all_tasks() if task is not own_task]:
        if time.monotonic() > deadline:
            return False
        for task in pending:
            task.cancel()
        await asyncio.sleep(0.01)
    return True


def is_canceled() -> bool:
    """Return true if MARFT cancelled the running task, false if user code raised ``CancelledError``."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop itself is ending
        return True
    return task is None or task.cancelling() > 0


def log_task_error(loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:  # noqa: ARG001
    """Log an unawaited task's error in one line without control characters; an event loop's exception handler."""
    error = context.get("exception")
    message = describe_error(error) if isinstance(error, BaseException) else str(context.get("message"))
    logger.warning("a task that nobody waits for failed: %s", single_line(message))
