"""Metric outputs: the metrics log and the loggers.

The log is authoritative and written immediately.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from marft.common.callbacks import Callback
from marft.config.api_keys import mask_values, option_secret_values
from marft.config.run import RunSettings
from marft.runs.changes import flatten_recipe
from marft.runs.loggers.interface import Parameter, RunInfo
from marft.runs.loggers.logger_queue import LoggerQueue
from marft.runs.metrics_log import LogDigest, MetricsLog
from marft.runs.run_folder import RunFolder

LOCAL_KEYS = ("sinks", "recipe_folder", "output")  # keys about locations on this machine, or about loggers


class MetricSinks:
    """Writer for the metrics log and the recipe's loggers.

    Args:
        finished_steps: number of training steps that the run has completed before.
        observer: receives messages about the run and about failing loggers.

    Raises:
        OSError: a file blocks a logger's folder in the run folder.
    """

    def __init__(self, run: RunSettings, folder: RunFolder, finished_steps: int, observer: Callback) -> None:
        self._log, self._observer, self._step = MetricsLog(folder.metrics), observer, finished_steps
        for part in run.sinks:
            if part.folder:
                (folder.path / part.folder).mkdir(exist_ok=True)
        run_info = RunInfo(
            folder.path.resolve(), run.name, folder.identity(), finished_steps, dict(logged_parameters(run))
        )
        self._queues = [(LoggerQueue(part, run_info), part.close_seconds) for part in run.sinks]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics for training step ``step`` (counted from 1)."""
        self._log.append({"step": step, **metrics})
        self._step = step
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for queue, _ in self._queues:
            queue.put(lambda sink: sink.log(step, finite))
            if warning := queue.take_warning():
                self._observer.on_note(warning)

    def note(self, text: str) -> None:
        """Report a message to the observer and the loggers."""
        self._observer.on_note(text)
        self._send_note(self._step, text)

    def guard(self, step: int, name: str, sentence: str) -> None:
        """Report a guard's finding to the observer and the loggers."""
        self._observer.on_guard(step, name, sentence)
        self._send_note(step, f"guard {name}: {sentence}")

    def _send_note(self, step: int, text: str) -> None:
        for queue, _ in self._queues:
            queue.put(lambda sink: sink.note(step, text))

    def log_digest(self) -> LogDigest:
        """Return the length and digest of the log."""
        return self._log.current_digest()

    def close(self, is_urgent: bool = False) -> None:
        """Close the log and wait for the loggers, each up to its ``close_seconds``.

        Args:
            is_urgent: the run has to end at once; the wait is short.
        """
        self._log.close()
        started_at = time.monotonic()
        for queue, _ in self._queues:
            queue.stop()
        for queue, seconds in self._queues:
            if warning := queue.wait(started_at + seconds, is_urgent):
                self._observer.on_note(warning)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_urgent=kind is not None and not issubclass(kind, Exception))


def logged_parameters(run: RunSettings) -> Iterator[tuple[str, Parameter]]:
    """Yield the recipe as dotted keys and values for loggers, without secrets and machine-specific keys."""
    secrets = list(option_secret_values(run.model_dump(mode="json", exclude_none=True)))
    for key, value in flatten_recipe(run):
        if key.partition(".")[0] not in LOCAL_KEYS:
            text = value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
            yield key, mask_values(secrets, text) if isinstance(text, str) else text
