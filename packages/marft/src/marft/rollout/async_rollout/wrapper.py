"""Base class for wrappers around a rollout source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import Episode
from marft.rollout.async_rollout.sources import RolloutSource
from marft.runs.checkpoints import State


class RolloutSourceWrapper:
    """Wrapper around a rollout source.

    Every method but ``collect`` delegates to the wrapped source. A subclass implements ``collect`` and overrides the
    methods whose behavior changes.
    """

    def __init__(self, source: RolloutSource) -> None:
        self._source = source

    def usage(self) -> dict[str, float]:
        """Return the wrapped source's sampling usage."""
        return self._source.usage()

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """Pass validation episodes to the wrapped source."""
        self._source.exclude_validation(episodes)

    def usage_seconds(self, wait_seconds: float) -> float:
        """Return the wrapped source's sampling time, in seconds."""
        return self._source.usage_seconds(wait_seconds)

    def on_publish(self, state: State) -> None:
        """Tell the wrapped source about a published policy."""
        self._source.on_publish(state)

    def on_rollback(self, state: State) -> None:
        """Roll back the wrapped source."""
        self._source.on_rollback(state)

    def save(self, folder: Path) -> None:
        """Save the wrapped source."""
        self._source.save(folder)

    def close(self) -> None:
        """Close the wrapped source."""
        self._source.close()
