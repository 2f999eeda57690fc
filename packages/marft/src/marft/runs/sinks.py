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

from marft.common.observing import Observer
from marft.config.keys import masked, options_in
from marft.config.run import RunSettings
from marft.runs.changes import flat
from marft.runs.folder import RunFolder
from marft.runs.log import Log, Mark
from marft.runs.loggers.feed import Feed
from marft.runs.loggers.interface import Opening, Parameter

OURS = ("sinks", "recipe_folder", "output")  # keys about locations on this machine, or about loggers


class MetricSinks:
    """Writer for the metrics log and the recipe's loggers.

    Args:
        done: number of training steps that the run has completed before.
        observer: receives messages about the run and about failing loggers.

    Raises:
        OSError: a file blocks a logger's folder in the run folder.
    """

    def __init__(self, run: RunSettings, folder: RunFolder, done: int, observer: Observer) -> None:
        self._log, self._observer, self._step = Log(folder.metrics), observer, done
        for part in run.sinks:
            if part.folder:
                (folder.path / part.folder).mkdir(exist_ok=True)
        opening = Opening(folder.path.resolve(), run.name, folder.identity(), done, dict(parameters(run)))
        self._feeds = [(Feed(part, opening), part.close_seconds) for part in run.sinks]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics for training step ``step`` (counted from 1)."""
        self._log.append({"step": step, **metrics})
        self._step = step
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for feed, _ in self._feeds:
            feed.put(lambda sink: sink.log(step, finite))
            if news := feed.news():
                self._observer.note(news)

    def note(self, text: str) -> None:
        """Report a message to the observer and the loggers."""
        self._observer.note(text)
        self._tell(self._step, text)

    def guard(self, step: int, name: str, sentence: str) -> None:
        """Report a guard's finding to the observer and the loggers."""
        self._observer.guard(step, name, sentence)
        self._tell(step, f"guard {name}: {sentence}")

    def _tell(self, step: int, text: str) -> None:
        for feed, _ in self._feeds:
            feed.put(lambda sink: sink.note(step, text))

    def mark(self) -> Mark:
        """Return the length and digest of the log."""
        return self._log.mark()

    def close(self, hurried: bool = False) -> None:
        """Close the log and wait for the loggers, each up to its ``close_seconds``.

        Args:
            hurried: the run has to end at once; the wait is short.
        """
        self._log.close()
        began = time.monotonic()
        for feed, _ in self._feeds:
            feed.end()
        for feed, seconds in self._feeds:
            if lost := feed.wait(began + seconds, hurried):
                self._observer.note(lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(hurried=kind is not None and not issubclass(kind, Exception))


def parameters(run: RunSettings) -> Iterator[tuple[str, Parameter]]:
    """Yield the recipe as dotted keys and values for loggers, without secrets and machine-specific keys."""
    secrets = list(options_in(run.model_dump(mode="json", exclude_none=True)))
    for key, value in flat(run):
        if key.partition(".")[0] not in OURS:
            plain = value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
            yield key, masked(secrets, plain) if isinstance(plain, str) else plain
