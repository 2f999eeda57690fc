"""An event loop on a thread of its own, and all tensor work on the thread that waits for it.

OpenMP keeps a pool of threads for every thread that computes. With an engine on one thread and a learner on another
there are more of them than cores; they then sleep between operations instead of spinning, and small operations take
several times as long. So the thread that learns lends itself to the engine while it waits for episodes.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]
GRACE_SECONDS = 10.0  # for episodes that are called off to close their sessions


class LentThread(Executor):
    """Runs coroutines on an event loop in the background; what is submitted meanwhile runs on the waiting thread.

    Args:
        call_off: ends what coroutines may wait for on other threads, when an interrupt calls them off.

    >>> lent = LentThread()
    >>> async def twice() -> int:
    ...     return await asyncio.get_running_loop().run_in_executor(lent, lambda: 2 * 21)
    >>> lent.wait_for(twice())
    42
    >>> lent.shutdown()
    """

    def __init__(self, call_off: Callable[[], None] = lambda: None) -> None:
        self._call_off = call_off
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._called_off = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="marft-game", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` run on the thread that is in :meth:`wait_for`."""
        future: Future[T] = Future()

        def job() -> None:
            if self._called_off:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` to its end, doing what is submitted → its result.

        An interrupt calls it off: it has some seconds to let go of what it holds, and nothing is computed any more.
        """

        async def to_the_end() -> T:
            try:
                return await coroutine
            finally:
                self._jobs.put(None)

        outcome = asyncio.run_coroutine_threadsafe(to_the_end(), self._loop)
        try:
            self._serve()
        except BaseException:
            self._called_off = True
            outcome.cancel()
            self._call_off()
            self._serve(GRACE_SECONDS)
            raise
        finally:
            self._called_off = False
        return outcome.result()

    def _serve(self, seconds: float | None = None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        with suppress(queue.Empty):
            while (job := self._jobs.get(timeout=deadline and max(0.0, deadline - time.monotonic()))) is not None:
                job()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
