"""Observers of a server: programs that read what it records while it serves, and make way for its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from marft.config.plugins import load_registered


class Beside(Protocol):
    """What goes on beside a server, and makes way for it."""

    def busy(self, requests: int) -> None:
        """So many requests are answered or wait now. It is called on the server's thread, and returns at once."""
        ...

    def close(self) -> None:
        """The server has ended."""
        ...


class Nothing:
    """Nothing goes on beside it."""

    def busy(self, requests: int) -> None:
        """Nobody makes way."""

    def close(self) -> None:
        """Nothing ends."""


@dataclass(frozen=True, slots=True)
class SecondTeam:
    """A team that an observer holds against the served one.

    Args:
        team: a run or an export.
        checkpoint: of a run.
        sessions: the folder that the server records to.
        output: the observer's own folder; None: one among the sessions.
        grade: a recipe, run or export that says what answers are worth; None: the team's own.
    """

    team: Path
    checkpoint: str
    overrides: Sequence[str]
    trust_code: bool
    sessions: Path
    output: Path | None
    grade: Path | None


@dataclass(frozen=True, slots=True)
class Observer:
    """An observer that is ready.

    Args:
        begin: begins it; called once the served team is loaded.
        announcement: a line about it for the terminal; "" for none.
    """

    begin: Callable[[], Beside] = Nothing
    announcement: str = ""


def observer_named(name: str, second: SecondTeam) -> Observer:
    """Return an observer of a second team, with what an installed package registers under ``marft.observers``.

    Raises:
        ValueError: no package registers the name, the second team cannot be served, or its settings do not fit.
    """
    observer: Observer = load_registered("observers", name)(second)
    return observer
