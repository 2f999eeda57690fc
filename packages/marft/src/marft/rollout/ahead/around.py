"""Base class for wrappers around a rollout source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import Episode
from marft.rollout.ahead.gathering import Gathering
from marft.runs.checkpoints import State


class Around:
    """Wrapper around a rollout source.

    Every method but ``collect`` delegates to the wrapped source. A subclass implements ``collect`` and overrides the
    methods whose behavior changes.
    """

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering

    def used(self) -> dict[str, float]:
        """Return the wrapped source's sampling usage."""
        return self._gathering.used()

    def validated(self, episodes: Sequence[Episode]) -> None:
        """Pass validation episodes to the wrapped source."""
        self._gathering.validated(episodes)

    def seconds(self, waited: float) -> float:
        """Return the wrapped source's sampling time, in seconds."""
        return self._gathering.seconds(waited)

    def published(self, state: State) -> None:
        """Tell the wrapped source about a published policy."""
        self._gathering.published(state)

    def abandon(self, state: State) -> None:
        """Roll back the wrapped source."""
        self._gathering.abandon(state)

    def write(self, folder: Path) -> None:
        """Save the wrapped source."""
        self._gathering.write(folder)

    def close(self) -> None:
        """Close the wrapped source."""
        self._gathering.close()
