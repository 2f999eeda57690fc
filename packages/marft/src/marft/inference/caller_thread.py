"""An event loop on a thread of its own, and all tensor work on the thread that waits for it.

OpenMP keeps a pool of threads for every thread that computes. With an engine on one thread and a learner on another
there are more of them than cores; they then sleep between operations instead of spinning, and small operations take
several times as long. So the thread that learns lends itself to the engine while it waits for episodes.
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
GRACE_SECONDS = 10.0  # for episodes that are cancelled to close their sessions


class Cancellable(Protocol):
    """What runs in the background."""

    @property
    def outcome(self) -> Future[Any]: ...

    def cancel(self) -> None: ...


class Background(Generic[T]):
    """A coroutine that runs on an event loop while its caller does something else."""

    def __init__(self, coroutine: Coroutine[object, object, T], loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: Future[T] = Future()  # what came of it, once it holds nothing any more
        self._loop, self._cancelled = loop, False
        loop.call_soon_threadsafe(self._start, coroutine)

    def cancel(self) -> None:
        """Have it let go of what it holds; its outcome is there when it has."""
        if not self._cancelled:  # once: a second time would reach it while it does so
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
    """Runs coroutines on an event loop in the background; what is submitted meanwhile runs on the waiting thread.

    Args:
        cancel: ends what coroutines may wait for on other threads, when an interrupt cancels them.

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
            with suppress(BaseException):  # of an organization's own task: asyncio lets SystemExit through
                self._loop.run_forever()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` run on the thread that is in :meth:`wait_for`."""
        future: Future[T] = Future()

        def job() -> None:
            if self._cancelled:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it
                future.set_exception(error)
            except BaseException:  # an interrupt in the middle: nobody is to wait for what never comes
                future.set_exception(CancelledError())
                raise

        self._jobs.put(job)
        return future

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run ``coroutine`` to its end, doing what is submitted → its result.

        An interrupt cancels it: it has some seconds to let go of what it holds, and nothing is computed any more.
        """

        def ended() -> None:
            """The last job of this call."""

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
                self._cancel()  # again and again: something may have been about to begin
            raise
        finally:
            self._cancelled = False
        return outcome.result()

    def begin(self, coroutine: Coroutine[object, object, T]) -> Background[T]:
        """Run ``coroutine`` in the background. What it submits waits for a thread in :meth:`wait_for`."""
        return Background(coroutine, self._loop)

    def end(self, begun: Sequence[Cancellable]) -> None:
        """Cancel what runs in the background: it has some seconds to let go of what it holds."""
        for one in begun:
            one.cancel()
        deadline = time.monotonic() + GRACE_SECONDS
        left = {one.outcome for one in begun}
        while left and time.monotonic() < deadline:
            self._cancel()  # again and again: something may have been about to begin
            left = wait(left, POLL_SECONDS).not_done

    def _serve(self, last: Job, patience: float | None) -> bool:
        """Do what is submitted, up to the last job; False: for so many seconds there was nothing to do."""
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
