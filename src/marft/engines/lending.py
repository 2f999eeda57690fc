"""An event loop on a thread of its own, and all tensor work on the thread that waits for it.

OpenMP keeps a pool of threads for every thread that computes. With an engine on one thread and a learner on another
there are more of them than cores; they then sleep between operations instead of spinning, and small operations take
several times as long. So the thread that learns lends itself to the engine while it waits for episodes.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]


class LentThread(Executor):
    """Runs coroutines on an event loop in the background; what is submitted meanwhile runs on the waiting thread.

    >>> lent = LentThread()
    >>> async def twice() -> int:
    ...     return await asyncio.get_running_loop().run_in_executor(lent, lambda: 2 * 21)
    >>> lent.wait_for(twice())
    42
    >>> lent.shutdown()
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="marft-game", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` run on the thread that is in :meth:`wait_for`."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` to its end, doing what is submitted → its result."""
        outcome = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        outcome.add_done_callback(lambda _: self._jobs.put(None))
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException:  # an interrupt: nobody will serve the episodes any more
            outcome.cancel()
            raise
        return outcome.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
