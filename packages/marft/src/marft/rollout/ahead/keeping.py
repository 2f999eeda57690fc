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
from marft.rollout.ahead.groups import Group
from marft.runs.episodes import read_episodes, write_episodes


class _Written(BaseModel):
    """Metadata of a stored group; the episodes are in a Parquet file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: NonNegativeInt
    episodes: NonNegativeInt
    played: list[NonNegativeInt]  # indices of the attempts without forks


class _All(BaseModel):
    """Content of the metadata file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    groups: list[_Written]


def write_groups(folder: Path, groups: Sequence[Group], name: str) -> None:
    """Write groups to ``<name>.parquet`` and ``<name>.json``; skip an empty list."""
    if not groups:
        return
    write_episodes(folder / f"{name}.parquet", [episode for group in groups for episode in group.recorded])
    written = _All(groups=[_Written(number=g.number, episodes=len(g.recorded), played=_places(g)) for g in groups])
    (folder / f"{name}.json").write_text(written.model_dump_json(indent=2) + "\n", encoding="utf-8")


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
        written = _All.model_validate(atomic.read_json(file)).groups
    except ValidationError as error:
        raise ValueError(f"{file} holds what no run writes: {first_problem(error)}") from None
    episodes = with_tasks(read_episodes(folder / f"{name}.parquet"), tasks)
    found = []
    for group in written:
        mine = list(islice(episodes, group.episodes))
        found.append(Group(group.number, [mine[place] for place in group.played], mine))
    return found


def with_tasks(episodes: Sequence[Episode], tasks: Sequence[Task]) -> Iterator[Episode]:
    """Attach task data to episodes; recordings omit the data.

    A task that is not in ``tasks`` stays unchanged.
    """
    by_id = {task.id: task for task in tasks}
    return (replace(episode, task=by_id.get(episode.task.id, episode.task)) for episode in episodes)


def _places(group: Group) -> list[int]:
    places = {id(episode): place for place, episode in enumerate(group.recorded)}
    return [places[id(episode)] for episode in group.played]
