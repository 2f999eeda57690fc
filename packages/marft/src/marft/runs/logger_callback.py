"""Metric loggers as a callback. The authoritative metrics log is :mod:`marft.runs.metrics_log`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator

from marft.common.callbacks import Callback
from marft.config.api_keys import mask_values, option_secret_values
from marft.config.run import RunSettings
from marft.runs.changes import flatten_recipe
from marft.runs.loggers.interface import Parameter, RunInfo
from marft.runs.loggers.logger_queue import LoggerQueue
from marft.runs.run_folder import RunFolder

LOCAL_KEYS = ("sinks", "recipe_folder", "output")  # keys about locations on this machine, or about loggers


class LoggerCallback(Callback):
    """Callback that passes metrics, notes and guard findings to the recipe's loggers (``[[sinks]]``).

    A logger that fails or lags never stops a run.

    Args:
        run: recipe of the run.
        folder: folder of the run.
        finished_steps: number of training steps that the run has completed before.
        note: callback for messages about failing loggers.

    Raises:
        OSError: a file blocks a logger's folder in the run folder.
    """

    def __init__(self, run: RunSettings, folder: RunFolder, finished_steps: int, note: Callable[[str], None]) -> None:
        self._note, self._step, self._is_open = note, finished_steps, True
        for part in run.sinks:
            if part.folder:
                (folder.path / part.folder).mkdir(exist_ok=True)
        run_info = RunInfo(
            folder.path.resolve(), run.name, folder.identity(), finished_steps, dict(logged_parameters(run))
        )
        self._queues = [(LoggerQueue(part, run_info), part.close_seconds) for part in run.sinks]

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step."""
        self._step = step
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for queue, _ in self._queues:
            queue.put(lambda sink: sink.log(step, finite))
            if warning := queue.take_warning():
                self._note(warning)

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
            if warning := queue.wait(started_at + seconds, is_urgent):
                self._note(warning)


def logged_parameters(run: RunSettings) -> Iterator[tuple[str, Parameter]]:
    """Yield the recipe as dotted keys and values for loggers, without secrets and machine-specific keys."""
    secrets = list(option_secret_values(run.model_dump(mode="json", exclude_none=True)))
    for key, value in flatten_recipe(run):
        if key.partition(".")[0] not in LOCAL_KEYS:
            text = value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
            yield key, mask_values(secrets, text) if isinstance(text, str) else text
