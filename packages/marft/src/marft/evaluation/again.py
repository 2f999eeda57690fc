"""Replay points: a recorded episode up to one action, continued with new samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from marft.agents.environment import Split
from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft.envs.tasks import tasks_of
from marft.evaluation.graph import find_episode
from marft.rollout.forking.counterfactual import replay_around
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Again:
    """Replay point: an action in a recorded episode, to be sampled again.

    >>> Again.of("20:7@0/actor/0")
    Again(where='20', episode='7', action='0/actor/0')
    >>> Again.of("20:chain_sum/17#2@0/actor/0").episode
    'chain_sum/17#2'

    Args:
        where: a recorded training step, or the name of an evaluation with recorded episodes.
        episode: the episode's index in that file, or task#sample.
        action: the ID of the action to sample again.
    """

    where: str
    episode: str
    action: str

    @staticmethod
    def of(text: str) -> Again:
        """Parse a replay point, for example ``20:7@0/actor/0``.

        Raises:
            ValueError: the text does not have the form STEP:EPISODE@ACTION.
        """
        where, colon, rest = text.partition(":")
        episode, at, action = rest.rpartition("@")
        if not (where and colon and episode and at and action):
            raise ValueError(
                f"--again: {text!r} names no action; give STEP:EPISODE@ACTION, such as 20:7@0/actor/0 "
                "(marft show and marft view say them)"
            )
        return Again(where, episode, action)

    def attempt(self, run: RunSettings, folder: RunFolder) -> Attempt:
        """Return an attempt that replays the recorded actions before this point.

        Raises:
            ValueError: the file of episodes, the episode, the action or the task does not exist.
        """
        episode = find_episode(read_episodes(self._file(folder)), self.episode)
        action = next((one for one in episode.actions if one.id == self.action), None)
        if action is None:
            known = ", ".join(one.id for one in episode.actions) or "none"
            raise ValueError(f"--again: the episode has no action {self.action!r}; there are: {known}")
        stream = _stream(episode)
        attempt = Attempt(_task(run, episode.task.id), stream, episode.sample)
        again = replace(replay_around(attempt, episode, action), origin=episode.name)
        return replace(attempt, stream=f"{episode.stream}/again/{action.id}", replay=again)

    def _file(self, folder: RunFolder) -> Path:
        if self.where.isascii() and self.where.isdigit():
            return folder.recorded(int(self.where))
        files = {path.stem: path for path in sorted(folder.evaluations.glob("*.parquet"))}
        if self.where not in files:
            known = ", ".join(files) or "none"
            raise ValueError(f"--again: no evaluation {self.where!r} has recorded episodes; there are: {known}")
        return files[self.where]


def _stream(episode: Episode) -> str:
    """Return the original episode's stream, also for a fork.

    The stream seeds the environment and the tools.
    """
    if episode.fork is None:
        return episode.stream
    return episode.fork.origin.removesuffix(f" {episode.task.id} #{episode.sample}")


def _task(run: RunSettings, name: str) -> Task:
    """Return the task with its data, which episode files do not record.

    Raises:
        ValueError: no split has a task with this ID.
    """
    splits: Sequence[Split] = get_args(Split)
    for split in splits:
        found = next((task for task in tasks_of(run.environment, split) if task.id == name), None)
        if found is not None:
            return found
    raise ValueError(f"--again: the environment has no task {name!r} any more, in any split")
