"""Metric loggers as a callback, each with a bounded queue and a thread.

A logger that raises or hangs never stops the run. The authoritative metrics log is :mod:`marft.runs.metrics_log`.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from marft.common.callbacks import Callback
from marft.common.log import get_logger
from marft.common.texts import format_error, single_line, truncate
from marft.config.interfaces.metric_logger import MetricLogger, Parameter, RunInfo, Sink
from marft.config.run import RunSettings
from marft.config.secrets import mask_values, passthrough_secret_values
from marft.runs.changes import flatten_recipe
from marft.runs.run_folder import RunFolder

logger = get_logger(__name__)
QUEUE_SIZE = 1000  # maximum number of queued entries
MAX_ERROR_LENGTH = 300  # maximum length of an error message, in characters
SHORT_WAIT_SECONDS = 0.5  # seconds to wait for a logger if the run has to end at once
T = TypeVar("T")
Entry = Callable[[Sink], None]  # passes a step or a note to the logger
LOCAL_KEYS = ("sinks", "recipe_folder", "output")  # keys about locations on this machine, or about loggers


class LoggerQueue:
    """Queue that passes entries to a logger in order.

    Entries are counted as lost if the queue is full or the logger raises.

    Args:
        max_size: maximum number of queued entries.
    """

    def __init__(self, part: MetricLogger, run_info: RunInfo, max_size: int = QUEUE_SIZE) -> None:
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
        sink = self._call(lambda: self._part.open(self._run_info))
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


class LoggerCallback(Callback):
    """Callback that passes metrics, notes and guard findings to the recipe's loggers (``[[sinks]]``).

    A logger that fails or lags never stops a run.

    Args:
        run: recipe of the run.
        folder: folder of the run.
        finished_steps: number of training steps that the run has completed before.

    Raises:
        OSError: a file blocks a logger's folder in the run folder.
    """

    def __init__(self, run: RunSettings, folder: RunFolder, finished_steps: int) -> None:
        self._step, self._is_open = finished_steps, True
        for part in run.sinks:
            if part.folder:
                (folder.path / part.folder).mkdir(exist_ok=True)
        run_info = RunInfo(
            folder.path.resolve(), run.name, folder.read_id(), finished_steps, dict(logged_parameters(run))
        )
        self._queues = [(LoggerQueue(part, run_info), part.close_seconds) for part in run.sinks]

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step."""
        self._step = step
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for queue, _ in self._queues:
            queue.put(lambda sink: sink.log(step, finite))
            self._warn(queue.take_warning())

    def on_note(self, text: str) -> None:
        """Log a message."""
        self._log_note(self._step, text)

    def on_guard(self, step: int, name: str, sentence: str) -> None:
        """Log a guard's finding."""
        self._log_note(step, f"guard {name}: {sentence}")

    def _log_note(self, step: int, text: str) -> None:
        for queue, _ in self._queues if self._is_open else ():
            queue.put(lambda sink: sink.note(step, text))

    def on_train_end(self, error: BaseException | None) -> None:
        """Wait for the loggers, each up to its ``close_seconds``; only briefly after an interrupt."""
        is_urgent = error is not None and not isinstance(error, Exception)
        started_at, self._is_open = time.monotonic(), False
        for queue, _ in self._queues:
            queue.stop()
        for queue, seconds in self._queues:
            self._warn(queue.wait(started_at + seconds, is_urgent))

    def _warn(self, text: str) -> None:
        """Log a warning about a logger; the loggers do not receive it."""
        is_open, self._is_open = self._is_open, False
        if text:
            logger.warning(text)
        self._is_open = is_open


def logged_parameters(run: RunSettings) -> Iterator[tuple[str, Parameter]]:
    """Yield the recipe as dotted keys and values for loggers, without secrets and machine-specific keys."""
    secrets = list(passthrough_secret_values(run.model_dump(mode="json", exclude_none=True)))
    for key, value in flatten_recipe(run):
        if key.partition(".")[0] not in LOCAL_KEYS:
            text = value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
            yield key, mask_values(secrets, text) if isinstance(text, str) else text
