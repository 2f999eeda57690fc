"""Episode group for a single draw."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from marft.common.types import Episode
from marft.rollout.async_rollout.capacity import max_lag


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Attempts at a task, and their forks.

    Args:
        number: index of the draw in the endless pass over the tasks.
        episodes: attempts sampled by the policies without forks.
        recorded: all episodes of the group, forks included.
    """

    number: int
    episodes: Sequence[Episode]
    recorded: Sequence[Episode]

    @property
    def scored(self) -> list[Episode]:
        """Episodes with a reward, usable for training."""
        return [episode for episode in self.recorded if episode.is_scored]


def max_policy_lag(episodes: Sequence[Episode], trained: Collection[str], version: Callable[[str], int]) -> int:
    """Return the maximum policy lag over all actions, in policy versions.

    Args:
        episodes: episodes to inspect.
        trained: policies that count; actions of other policies are ignored.
        version: function that returns the current version of a policy.
    """
    ages = [
        max_lag(version(action.policy), [action.versions.lowest])
        for episode in episodes
        for action in episode.actions
        if action.policy in trained
    ]
    return max(ages, default=0)
