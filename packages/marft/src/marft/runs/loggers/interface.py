"""What a sink is told, and what it is told of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The run that begins, or goes on.

    Args:
        folder: of the run.
        name: of the run.
        id: letters and digits; the same whenever the run goes on, and another one for each run.
        done: training steps that were done before; more than 0 where the run goes on.
        parameters: the recipe, by dotted keys, without secrets.
    """

    folder: Path
    name: str
    id: str
    done: int
    parameters: Mapping[str, Parameter]


class Opens(Protocol):
    """A :class:`marft.config.parts.SinkPart`, as it is called."""

    def open(self, run: Opening) -> Sink: ...


class Sink(Protocol):
    """An open sink. All of it is called on one thread, which nobody waits for: it may block, and raise.

    What is told again after a run went on from an earlier checkpoint is what was told before.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of training step ``step``, counted from 1; all of them finite."""

    def note(self, step: int, text: str) -> None:
        """Something that the run said after ``step``: a guard's sentence, for one."""

    def close(self) -> None:
        """Nothing more comes."""
