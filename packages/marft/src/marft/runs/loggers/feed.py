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

from marft.common.texts import cut, one_line, raised
from marft.config.parts import SinkPart
from marft.runs.loggers.interface import Opening, Opens, Sink

ROOM = 1000  # maximum number of queued entries
SHOWN = 300  # maximum length of an error message, in characters
HURRIED = 0.5  # seconds to wait for a logger if the run has to end at once
T = TypeVar("T")
Entry = Callable[[Sink], None]  # passes a step or a note to the logger


class Feed:
    """Queue that passes entries to a logger in order.

    Entries are counted as lost if the queue is full or the logger raises.

    Args:
        room: maximum number of queued entries.
    """

    def __init__(self, part: SinkPart, opening: Opening, room: int = ROOM) -> None:
        self._part, self._opening, self._room = part, opening, room
        self._waiting: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._told, self._lost, self._why, self._said = 0, 0, "", False
        self._thread = threading.Thread(target=self._work, name=f"sink {part.name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queue an entry; never blocks."""
        with self._changed:
            self._told += 1
            if not self._thread.is_alive():
                self._lose(1, "it has ended")
            elif len(self._waiting) >= self._room:
                self._lose(1, f"it is slower than the run: {self._room} entries were waiting already")
            else:
                self._waiting.append(entry)
                self._changed.notify()

    def news(self) -> str:
        """Return a message at the first lost entry, else ""."""
        with self._changed:
            if self._said or not self._why:
                return ""
            self._said = True
            return (
                f"sink {self._part.name!r} does not take everything: {self._why}. The run goes on, and metrics.jsonl "
                "has all of it"
            )

    def end(self) -> None:
        """Signal the end: the logger closes after its queued entries."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def wait(self, deadline: float, hurried: bool = False) -> str:
        """Wait for the logger to close, and return a message about lost entries. The message is "" without losses.

        Args:
            deadline: a time on the clock of ``time.monotonic``, in seconds.
            hurried: wait for at most ``HURRIED`` seconds, because the run has to end at once.
        """
        left = max(0.0, deadline - time.monotonic())
        self._thread.join(min(left, HURRIED) if hurried else left)
        with self._changed:
            if self._thread.is_alive():
                self._lose(len(self._waiting), "it did not close in time")
            if not self._why:
                return ""
            what = f"has not got {self._lost} of {self._told} entries" if self._lost else "did not end well"
            return f"sink {self._part.name!r} {what}: {self._why}. metrics.jsonl has all of it"

    def _work(self) -> None:
        """Run the logger's thread."""
        sink = self._heard(lambda: cast("Opens", self._part).open(self._opening))
        while (entry := self._next()) is not None:
            if sink is None:
                with self._changed:
                    self._lose(1)
            else:
                self._heard(lambda to=sink, of=entry: of(to), costs=1)  # type: ignore[misc]
        if sink is not None:
            self._heard(sink.close)

    def _next(self) -> Entry | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            return self._waiting.popleft() if self._waiting else None

    def _heard(self, call: Callable[[], T], costs: int = 0) -> T | None:
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
                    self._lose(costs, cut(one_line(raised(error)), SHOWN))
            return None
        finally:
            if os.getpid() != process:
                os._exit(0)

    def _lose(self, entries: int, why: str = "") -> None:
        self._lost += entries
        self._why = self._why or why
