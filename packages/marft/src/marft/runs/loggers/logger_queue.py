"""Logger queues: a bounded queue and a thread for each logger.

A logger that raises or hangs never stops the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from marft.common.texts import format_error, single_line, truncate
from marft.config.plugin_types import SinkPart
from marft.runs.loggers.interface import LoggerFactory, RunInfo, Sink

QUEUE_SIZE = 1000  # maximum number of queued entries
MAX_ERROR_LENGTH = 300  # maximum length of an error message, in characters
SHORT_WAIT_SECONDS = 0.5  # seconds to wait for a logger if the run has to end at once
T = TypeVar("T")
Entry = Callable[[Sink], None]  # passes a step or a note to the logger


class LoggerQueue:
    """Queue that passes entries to a logger in order.

    Entries are counted as lost if the queue is full or the logger raises.

    Args:
        max_size: maximum number of queued entries.
    """

    def __init__(self, part: SinkPart, run_info: RunInfo, max_size: int = QUEUE_SIZE) -> None:
        self._part, self._run_info, self._max_size = part, run_info, max_size
        self._waiting: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._entry_count, self._dropped_count, self._reason, self._is_reported = 0, 0, "", False
        self._thread = threading.Thread(target=self._run, name=f"sink {part.name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queue an entry; never blocks."""
        with self._changed:
            self._entry_count += 1
            if not self._thread.is_alive():
                self._drop(1, "it has ended")
            elif len(self._waiting) >= self._max_size:
                self._drop(1, f"it is slower than the run: {self._max_size} entries were waiting already")
            else:
                self._waiting.append(entry)
                self._changed.notify()

    def take_warning(self) -> str:
        """Return a message at the first lost entry, else ""."""
        with self._changed:
            if self._is_reported or not self._reason:
                return ""
            self._is_reported = True
            return (
                f"sink {self._part.name!r} does not take everything: {self._reason}. The run goes on, and "
                "metrics.jsonl has all of it"
            )

    def stop(self) -> None:
        """Signal the end: the logger closes after its queued entries."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wait(self, deadline: float, is_urgent: bool = False) -> str:
        """Wait for the logger to close, and return a message about lost entries. The message is "" without losses.

        Args:
            deadline: a time on the clock of ``time.monotonic``, in seconds.
            is_urgent: wait for at most ``SHORT_WAIT_SECONDS`` seconds, because the run has to end at once.
        """
        remaining = max(0.0, deadline - time.monotonic())
        self._thread.join(min(remaining, SHORT_WAIT_SECONDS) if is_urgent else remaining)
        with self._changed:
            if self._thread.is_alive():
                self._drop(len(self._waiting), "it did not close in time")
            if not self._reason:
                return ""
            problem = (
                f"has not got {self._dropped_count} of {self._entry_count} entries"
                if self._dropped_count
                else "did not end well"
            )
            return f"sink {self._part.name!r} {problem}: {self._reason}. metrics.jsonl has all of it"

    def _run(self) -> None:
        """Run the logger's thread."""
        sink = self._call(lambda: cast("LoggerFactory", self._part).open(self._run_info))
        while (entry := self._next()) is not None:
            if sink is None:
                with self._changed:
                    self._drop(1)
            else:
                self._call(lambda logger=sink, write=entry: write(logger), entries=1)  # type: ignore[misc]
        if sink is not None:
            self._call(sink.close)

    def _next(self) -> Entry | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting.popleft() if self._waiting else None

    def _call(self, call: Callable[[], T], entries: int = 0) -> T | None:
        """Call a logger, recording exceptions.

        The result is None if the call raises. A process that the logger forked exits here, because it must not continue
        the run.
        """
        process = os.getpid()
        try:
            return call()
        except BaseException as error:  # noqa: BLE001  user code, which may also exit, on this thread only
            if os.getpid() == process:
                with self._changed:
                    self._drop(entries, truncate(single_line(format_error(error)), MAX_ERROR_LENGTH))
            return None
        finally:
            if os.getpid() != process:
                os._exit(0)

    def _drop(self, entries: int, reason: str = "") -> None:
        self._dropped_count += entries
        self._reason = self._reason or reason
