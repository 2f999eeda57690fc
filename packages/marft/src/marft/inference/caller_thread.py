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
from threading import Thread
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from marft.agents.loop_threads import complain

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0  # time that cancelled episodes get to close their sessions


class Cancellable(Protocol):
    """Background work with a future result."""

    @property
    def outcome(self) -> Future[Any]: ...

    def cancel(self) -> None: ...


class Background(Generic[T]):
    """Coroutine running on an event loop in the background."""

    def __init__(self, coroutine: Coroutine[object, object, T], loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: Future[T] = Future()  # set after the coroutine has released its resources
        self._loop, self._cancelled = loop, False
        loop.call_soon_threadsafe(self._start, coroutine)

    def cancel(self) -> None:
        """Cancel the coroutine; ``outcome`` follows after its cleanup. Repeated calls do nothing."""
        if not self._cancelled:  # a second cancellation would interrupt the coroutine's cleanup
            self._cancelled = True
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())

    def _start(self, coroutine: Coroutine[object, object, T]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[T]) -> None:
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
        self._cancelled = False
        self._over = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(complain)
        self._thread = Thread(target=self._run, name="marft-game", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            with suppress(BaseException):  # asyncio does not catch SystemExit from a task of an organization
                self._loop.run_forever()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue ``fn`` for the thread in :meth:`wait_for`."""
        future: Future[T] = Future()

        def job() -> None:
            if self._cancelled:
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

        def ended() -> None:
            """Sentinel: the last job in this call."""

        async def to_the_end() -> T:
            try:
                return await coroutine
            finally:
                self._jobs.put(ended)

        outcome = asyncio.run_coroutine_threadsafe(to_the_end(), self._loop)
        try:
            self._serve(ended, None)
        except BaseException:
            self._cancelled = True
            outcome.cancel()
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and not self._serve(ended, POLL_SECONDS):
                self._cancel()  # repeated, because a new wait may have just started
            raise
        finally:
            self._cancelled = False
        return outcome.result()

    def begin(self, coroutine: Coroutine[object, object, T]) -> Background[T]:
        """Run a coroutine in the background. Its submitted jobs run during the next :meth:`wait_for`."""
        return Background(coroutine, self._loop)

    def end(self, begun: Sequence[Cancellable]) -> None:
        """Cancel background coroutines and wait up to ``GRACE_SECONDS`` for their cleanup."""
        for one in begun:
            one.cancel()
        deadline = time.monotonic() + GRACE_SECONDS
        left = {one.outcome for one in begun}
        while left and time.monotonic() < deadline:
            self._cancel()  # repeated, because a new wait may have just started
            left = wait(left, POLL_SECONDS).not_done

    def _serve(self, last: Job, patience: float | None) -> bool:
        """Run submitted jobs up to ``last``. Return False if the queue stays empty for ``patience`` seconds."""
        try:
            while (job := self._jobs.get(timeout=patience)) is not last:
                job()
        except queue.Empty:
            return False
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop the event loop."""
        if not self._loop.is_closed():
            self._over = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
