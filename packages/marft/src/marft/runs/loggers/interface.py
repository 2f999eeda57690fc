"""Interface of metric loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Run information for a logger, at start or resume.

    Args:
        folder: folder of the run.
        name: name of the run.
        id: unique alphanumeric ID of the run, unchanged on resume.
        finished_steps: number of completed training steps; more than 0 on resume.
        parameters: the recipe by dotted keys, without secrets.
    """

    folder: Path
    name: str
    id: str
    finished_steps: int
    parameters: Mapping[str, Parameter]


class LoggerFactory(Protocol):
    """Interface for opening a :class:`marft.config.plugin_types.SinkPart`."""

    def open(self, run: RunInfo) -> Sink:
        """Open the logger for a run, on the logger's own thread."""


class Sink(Protocol):
    """Open logger. All calls are on one thread without a timeout, so they may block and raise.

    After a run resumes from an earlier checkpoint, repeated steps have the same values as before.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics for training step ``step`` (counted from 1). All values are finite."""

    def note(self, step: int, text: str) -> None:
        """Record a message after step ``step``, for example a guard's finding."""

    def close(self) -> None:
        """Close the logger; no more calls follow."""
