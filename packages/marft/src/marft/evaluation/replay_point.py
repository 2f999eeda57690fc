"""Replay points: a recorded episode up to one action, continued with new samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from marft.agents.game import Attempt
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.interfaces.environment import Split
from marft.config.run import RunSettings
from marft.envs.tasks import read_tasks
from marft.evaluation.transcripts import find_episode
from marft.rollout.fork_plans import build_counterfactual
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """Replay point: an action in a recorded episode, to be sampled again.

    >>> ReplayPoint.parse("20:7@0/actor/0")
    ReplayPoint(source='20', episode='7', action='0/actor/0')
    >>> ReplayPoint.parse("20:chain_sum/17#2@0/actor/0").episode
    'chain_sum/17#2'

    Args:
        source: a recorded training step, or the name of an evaluation with recorded episodes.
        episode: the episode's index in that file, or task#sample.
        action: the ID of the action to sample again.
    """

    source: str
    episode: str
    action: str

    @staticmethod
    def parse(text: str) -> ReplayPoint:
        """Parse a replay point, for example ``20:7@0/actor/0``.

        Raises:
            UserError: the text does not have the form STEP:EPISODE@ACTION.
        """
        source, source_separator, remainder = text.partition(":")
        episode, action_separator, action = remainder.rpartition("@")
        if not (source and source_separator and episode and action_separator and action):
            raise UserError(
                f"--fork-from: {text!r} names no action; give STEP:EPISODE@ACTION, such as 20:7@0/actor/0 "
                "(marft show and marft view say them)"
            )
        return ReplayPoint(source, episode, action)

    def build_attempt(self, run: RunSettings, folder: RunFolder) -> Attempt:
        """Return an attempt that replays the recorded actions before this point.

        Raises:
            UserError: the file of episodes, the episode, the action or the task does not exist.
        """
        episode = find_episode(read_episodes(self._episodes_path(folder)), self.episode)
        action = next((candidate for candidate in episode.actions if candidate.id == self.action), None)
        if action is None:
            available = ", ".join(candidate.id for candidate in episode.actions) or "none"
            raise UserError(f"--fork-from: the episode has no action {self.action!r}; there are: {available}")
        stream = _original_stream(episode)
        attempt = Attempt(_find_task(run, episode.task.id), stream, episode.sample)
        replay = replace(build_counterfactual(attempt, episode, action), origin=episode.name)
        return replace(attempt, stream=f"{episode.stream}/again/{action.id}", replay=replay)

    def _episodes_path(self, folder: RunFolder) -> Path:
        if self.source.isascii() and self.source.isdigit():
            return folder.find_recorded(int(self.source))
        files = {path.stem: path for path in sorted(folder.evaluations.glob("*.parquet"))}
        if self.source not in files:
            available = ", ".join(files) or "none"
            raise UserError(f"--fork-from: no evaluation {self.source!r} has recorded episodes; there are: {available}")
        return files[self.source]


def _original_stream(episode: Episode) -> str:
    """Return the original episode's stream, also for a fork.

    The stream seeds the environment and the tools.
    """
    if episode.fork is None:
        return episode.stream
    return episode.fork.origin.removesuffix(f" {episode.task.id} #{episode.sample}")


def _find_task(run: RunSettings, name: str) -> Task:
    """Return the task with its data, which episode files do not record.

    Raises:
        UserError: no split has a task with this ID.
    """
    splits: Sequence[Split] = get_args(Split)
    for split in splits:
        match = next((task for task in read_tasks(run.environment, split) if task.id == name), None)
        if match is not None:
            return match
    raise UserError(f"--fork-from: the environment has no task {name!r} any more, in any split")
