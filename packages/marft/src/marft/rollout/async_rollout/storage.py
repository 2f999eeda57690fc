"""Storage of episode groups in a checkpoint: recorded episodes, and their division into groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from marft.common import atomic
from marft.common.types import Episode, Task
from marft.config.load import first_problem
from marft.rollout.async_rollout.groups import Group
from marft.runs.episode_files import read_episodes, write_episodes


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
        ValueError: the files cannot be read.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return []
    try:
        stored = _StoredGroups.model_validate(atomic.read_json(file)).groups
    except ValidationError as error:
        raise ValueError(f"{file} holds what no run writes: {first_problem(error)}") from None
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
