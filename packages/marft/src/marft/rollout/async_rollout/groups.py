"""Episode groups: their policy lag, the limit on it, and their storage in a checkpoint.

A group holds every episode played for one draw from the endless pass over the tasks. Its number is the index of the
draw. Training steps consume groups in order, ``per_step`` groups per step. The limit follows AReaL (Fu et al. 2025,
§5.1): a policy of version v may start all groups for steps v to v + k. Each of these groups is then trained on at most
k versions later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.load import first_problem
from marft.runs.episode_files import read_episodes, write_episodes


def first_blocked_group(first: int, discarded: int, *, lag: int, per_step: int, remaining_steps: int) -> int:
    """Return the number of the first group blocked by the lag limit.

    >>> first_blocked_group(first=8, discarded=0, lag=1, per_step=4, remaining_steps=10)
    16

    Args:
        first: number of the first group that the next step may train on.
        discarded: number of known discarded groups from ``first`` on.
        lag: k, the maximum age of training data in policy versions.
        per_step: groups per training step.
        remaining_steps: remaining training steps that need groups.
    """
    return first + discarded + per_step * min(lag + 1, remaining_steps)


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
    actions = [action for episode in episodes for action in episode.actions if action.policy in trained]
    return max([0, *(version(action.policy) - action.versions.lowest for action in actions)])


class _StoredGroup(BaseModel):
    """Metadata of a stored group; the episodes are in a Parquet file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: NonNegativeInt
    episodes: NonNegativeInt
    played: list[NonNegativeInt]  # indices of the attempts without forks


class _StoredGroups(BaseModel):
    """Content of the metadata file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    groups: list[_StoredGroup]


def write_groups(folder: Path, groups: Sequence[Group], name: str) -> None:
    """Write groups to ``<name>.parquet`` and ``<name>.json``; skip an empty list."""
    if not groups:
        return
    write_episodes(folder / f"{name}.parquet", [episode for group in groups for episode in group.recorded])
    stored = _StoredGroups(
        groups=[_StoredGroup(number=g.number, episodes=len(g.recorded), played=_episode_positions(g)) for g in groups]
    )
    (folder / f"{name}.json").write_text(stored.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_groups(folder: Path, tasks: Sequence[Task], name: str) -> list[Group]:
    """Read stored groups and attach the current tasks.

    A missing metadata file yields an empty list.

    Raises:
        UserError: the files cannot be read.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return []
    try:
        stored = _StoredGroups.model_validate(atomic.read_json(file)).groups
    except ValidationError as error:
        raise UserError(f"{file} holds what no run writes: {first_problem(error)}") from None
    episodes = attach_tasks(read_episodes(folder / f"{name}.parquet"), tasks)
    groups = []
    for group in stored:
        group_episodes = list(islice(episodes, group.episodes))
        groups.append(Group(group.number, [group_episodes[index] for index in group.played], group_episodes))
    return groups


def attach_tasks(episodes: Sequence[Episode], tasks: Sequence[Task]) -> Iterator[Episode]:
    """Attach task data to episodes; recordings omit the data.

    A task that is not in ``tasks`` stays unchanged.
    """
    by_id = {task.id: task for task in tasks}
    return (replace(episode, task=by_id.get(episode.task.id, episode.task)) for episode in episodes)


def _episode_positions(group: Group) -> list[int]:
    indices = {id(episode): index for index, episode in enumerate(group.recorded)}
    return [indices[id(episode)] for episode in group.episodes]
