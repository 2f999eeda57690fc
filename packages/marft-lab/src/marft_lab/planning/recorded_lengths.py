"""Mean lengths of actions and episodes in a run's recorded episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from marft.common.types import Episode
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft_lab.planning.workload import KnownLengths

MAX_FILES = 3  # maximum number of files, the newest


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Lengths and times from the newest recorded steps of a run."""

    lengths: KnownLengths
    environment_seconds: float  # seconds per environment step, without the time of agents


def read_recorded_lengths(folder: RunFolder) -> RecordedLengths | None:
    """Return a run's recorded lengths; None without recorded episodes."""
    files = sorted(folder.episodes.glob("*.parquet"))[-MAX_FILES:]
    episodes = [episode for file in files for episode in read_episodes(file) if episode.actions and not episode.fork]
    return mean_lengths(episodes, f"the last {len(files)} recorded steps of {folder.path}") if episodes else None


def mean_lengths(episodes: Sequence[Episode], source: str) -> RecordedLengths:
    """Return the mean lengths over actions and episodes; at least one episode with an action is required."""
    actions = [action for episode in episodes for action in episode.actions]
    counts = Counter(action.agent for action in actions)
    steps = [max(1, len(episode.transitions)) for episode in episodes]
    idle = [
        max(0.0, episode.seconds - _active_seconds(episode)) / count
        for episode, count in zip(episodes, steps, strict=True)
    ]
    lengths = KnownLengths(
        prompt=fmean(len(action.prompt) for action in actions),
        action=fmean(len(action.tokens) for action in actions),
        longest=float(max(len(action.tokens) for action in actions)),
        environment_steps=fmean(steps),
        actions={agent: count / len(episodes) for agent, count in counts.items()},
        source=source,
    )
    return RecordedLengths(lengths, fmean(idle))


def _active_seconds(episode: Episode) -> float:
    """Return the seconds with at least one active agent."""
    total, busy_until = 0.0, 0.0
    for started, ended in sorted((action.started, action.ended) for action in episode.actions):
        total += max(0.0, ended - max(started, busy_until))
        busy_until = max(busy_until, ended)
    return total
