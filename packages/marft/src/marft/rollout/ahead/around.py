"""What stands around a gathering, and passes on what it leaves to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import Episode
from marft.rollout.ahead.gathering import Gathering
from marft.runs.checkpoints import State


class Around:
    """A gathering with something around it: who derives from this collects, and changes what is not as inside."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering

    def used(self) -> dict[str, float]:
        return self._gathering.used()

    def validated(self, episodes: Sequence[Episode]) -> None:
        self._gathering.validated(episodes)

    def seconds(self, waited: float) -> float:
        return self._gathering.seconds(waited)

    def published(self, state: State) -> None:
        self._gathering.published(state)

    def abandon(self, state: State) -> None:
        self._gathering.abandon(state)

    def write(self, folder: Path) -> None:
        self._gathering.write(folder)

    def close(self) -> None:
        self._gathering.close()
