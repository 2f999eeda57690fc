"""Sidecars for a server: programs that process its recorded sessions and yield to its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from marft.config.plugins import load_registered


class Sidecar(Protocol):
    """Sidecar that runs next to a server and yields to its requests."""

    def busy(self, requests: int) -> None:
        """Report the number of running and waiting requests.

        The server calls this method on its own thread, so it must return immediately.
        """
        ...

    def close(self) -> None:
        """Stop, after the server's end."""
        ...


class NoSidecar:
    """Sidecar without any function."""

    def busy(self, requests: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class ShadowTeam:
    """Second team for comparison with the served team.

    Args:
        team: run or export.
        checkpoint: checkpoint of a run.
        overrides: overrides of its recipe.
        trust_code: True to run code from an export.
        sessions: folder with the server's recordings.
        output: output folder of the sidecar; None for a subfolder of the sessions.
        grade: recipe, run or export whose environment grades the answers; None for the second team's own.
    """

    team: Path
    checkpoint: str
    overrides: Sequence[str]
    trust_code: bool
    sessions: Path
    output: Path | None
    grade: Path | None


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    """Sidecar ready to start.

    Args:
        begin: function that starts it, called once the served team is loaded.
        announcement: line for the terminal; "" for none.
    """

    begin: Callable[[], Sidecar] = NoSidecar
    announcement: str = ""


def load_sidecar(name: str, shadow_team: ShadowTeam) -> SidecarSpec:
    """Return the sidecar for a second team, from the entry-point group ``marft.observers``.

    Raises:
        ValueError: no package registers the name, the second team cannot be served, or its settings are invalid.
    """
    spec: SidecarSpec = load_registered("observers", name)(shadow_team)
    return spec
