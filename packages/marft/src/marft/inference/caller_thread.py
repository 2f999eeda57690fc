"""Event loop on a background thread; tensor work runs on the thread waiting for results.

OpenMP keeps one thread pool for every thread that computes. With an engine on one thread and a learner on another, the
pools have more threads than the machine has cores. The threads then sleep between operations instead of spinning, and
small operations take several times as long. Therefore the learner's thread runs the engine's tensor work while it waits
for episodes.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from marft.agents.loop_threads import log_task_error

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0  # time that cancelled episodes get to close their sessions


class CancelableTask(Protocol):
    """Background work with a future result."""

    @property
    def outcome(self) -> Future[Any]: ...

    def cancel(self) -> None: ...


class BackgroundTask(Generic[T]):
    """Coroutine running on an event loop in the background."""

    def __init__(self, coroutine: Coroutine[object, object, T], loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: Future[T] = Future()  # set after the coroutine has released its resources
        self._loop, self._canceled = loop, False
        loop.call_soon_threadsafe(self._start, coroutine)

    def cancel(self) -> None:
        """Cancel the coroutine; ``outcome`` follows after its cleanup. Repeated calls do nothing."""
        if not self._canceled:  # a second cancellation would interrupt the coroutine's cleanup
            self._canceled = True
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())

    def _start(self, coroutine: Coroutine[object, object, T]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[T]) -> None:
        error = CancelledError() if task.cancelled() else task.exception()
        if error:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class CallerThreadExecutor(Executor):
    """Executor for jobs on the waiting thread, with coroutines on a background event loop.

    A submitted job runs on the thread that is in :meth:`wait_for`.

    Args:
        cancel: callback that stops blocking waits on other threads, called when an interrupt cancels the coroutines.

    >>> executor = CallerThreadExecutor()
    >>> async def twice() -> int:
    ...     return await asyncio.get_running_loop().run_in_executor(executor, lambda: 2 * 21)
    >>> executor.wait_for(twice())
    42
    >>> executor.shutdown()
    """

    def __init__(self, cancel: Callable[[], None] = lambda: None) -> None:
        self._cancel = cancel
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._canceled = False
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(log_task_error)
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="marft-game", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            with suppress(BaseException):  # asyncio does not catch SystemExit from a task of an organization
                self._loop.run_forever()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue ``fn`` for the thread in :meth:`wait_for`."""
        future: Future[T] = Future()

        def job() -> None:
            if self._canceled:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  the future passes the error to the waiting code
                future.set_exception(error)
            except BaseException:  # an interrupt: cancel the future, because no result will follow
                future.set_exception(CancelledError())
                raise

        self._jobs.put(job)
        return future

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine to completion while executing submitted jobs; return its result.

        An interrupt cancels the coroutine. The coroutine then has ``GRACE_SECONDS`` to release its resources, and no
        further job runs.

        Raises:
            Exception: error raised by the coroutine.
        """

        def end_marker() -> None:
            """Sentinel: the last job in this call."""

        async def run_to_end() -> T:
            try:
                return await coroutine
            finally:
                self._jobs.put(end_marker)

        outcome = asyncio.run_coroutine_threadsafe(run_to_end(), self._loop)
        try:
            self._run_jobs(end_marker, None)
        except BaseException:
            self._canceled = True
            outcome.cancel()
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and not self._run_jobs(end_marker, POLL_SECONDS):
                self._cancel()  # repeated, because a new wait may have just started
            raise
        finally:
            self._canceled = False
        return outcome.result()

    def start_background(self, coroutine: Coroutine[object, object, T]) -> BackgroundTask[T]:
        """Run a coroutine in the background. Its submitted jobs run during the next :meth:`wait_for`."""
        return BackgroundTask(coroutine, self._loop)

    def cancel_background(self, tasks: Sequence[CancelableTask]) -> None:
        """Cancel background coroutines and wait up to ``GRACE_SECONDS`` for their cleanup."""
        for task in tasks:
            task.cancel()
        deadline = time.monotonic() + GRACE_SECONDS
        unfinished = {task.outcome for task in tasks}
        while unfinished and time.monotonic() < deadline:
            self._cancel()  # repeated, because a new wait may have just started
            unfinished = wait(unfinished, POLL_SECONDS).not_done

    def _run_jobs(self, last: Job, timeout: float | None) -> bool:
        """Run submitted jobs up to ``last``. Return False if the queue stays empty for ``timeout`` seconds."""
        try:
            while (job := self._jobs.get(timeout=timeout)) is not last:
                job()
        except queue.Empty:
            return False
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop the event loop."""
        if not self._loop.is_closed():
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
