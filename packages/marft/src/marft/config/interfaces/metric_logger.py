"""Metric loggers: programs that show the metrics of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Protocol

from pydantic import Field

from marft.common.packages import install_command
from marft.config.plugins import Plugin
from marft.config.settings import Positive

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


class MetricLogger(Plugin, ABC, kind="sinks", label="a sink"):
    """Base class for metric loggers in ``[[sinks]]``."""

    package: ClassVar[str] = ""  # required package
    extra: ClassVar[str] = ""  # extra of MARFT that installs the package; "": install the package by name
    folder: ClassVar[str] = ""  # output folder inside the run's folder

    close_seconds: Positive = Field(
        default=20.0, description="maximum wait for pending writes at the end of a run, in seconds"
    )

    @abstractmethod
    def open(self, run: RunInfo) -> Sink:
        """Open the logger for a run, on the logger's own thread."""

    def install_hint(self) -> str:
        """Return the command that installs what the logger needs; "" where nothing is missing."""
        spec = find_spec(self.package) if self.package else None
        # a spec without origin may be a plain folder of that name
        if not self.package or (spec is not None and spec.origin is not None):
            return ""
        return install_command(self.extra) if self.extra else f"pip install {self.package}"
