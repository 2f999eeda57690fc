"""What is played of one task for a training step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from marft.common.types import Episode
from marft.rollout.ahead.capacity import age


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The attempts at a task, and what is forked from them.

    Args:
        number: of the task, in the endless pass over all of them.
        played: the attempts as the policies make them.
        recorded: everything.
    """

    number: int
    played: Sequence[Episode]
    recorded: Sequence[Episode]

    @property
    def scored(self) -> list[Episode]:
        """What can be learned from."""
        return [episode for episode in self.recorded if episode.scored]


def oldest(episodes: Sequence[Episode], trained: Collection[str], version: Callable[[str], int]) -> int:
    """How many versions policies are newer, at most, than those that sampled their actions.

    Args:
        trained: policies whose versions count.
        version: of a policy now.
    """
    ages = [
        age(version(action.policy), [action.versions.lowest])
        for episode in episodes
        for action in episode.actions
        if action.policy in trained
    ]
    return max(ages, default=0)
