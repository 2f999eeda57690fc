"""How long actions and episodes of a run were, from the episodes that it has recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from marft.common.types import Episode
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder
from marft_lab.planning.work import Known

RECORDED = 3  # newest files that are read


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run's newest recorded steps say of a step of it."""

    known: Known
    environment_seconds: float  # of an environment step, all that is no agent's


def recorded(folder: RunFolder) -> Recorded | None:
    """What can be read off a run; None where it has recorded nothing."""
    files = sorted(folder.episodes.glob("*.parquet"))[-RECORDED:]
    episodes = [episode for file in files for episode in read_episodes(file) if episode.actions and not episode.fork]
    return lengths_of(episodes, f"the last {len(files)} recorded steps of {folder.path}") if episodes else None


def lengths_of(episodes: Sequence[Episode], source: str) -> Recorded:
    """Averages over actions and episodes; at least one episode with an action."""
    actions = [action for episode in episodes for action in episode.actions]
    counts = Counter(action.agent for action in actions)
    steps = [max(1, len(episode.transitions)) for episode in episodes]
    idle = [
        max(0.0, episode.seconds - _acting(episode)) / count for episode, count in zip(episodes, steps, strict=True)
    ]
    known = Known(
        prompt=fmean(len(action.prompt) for action in actions),
        action=fmean(len(action.tokens) for action in actions),
        longest=float(max(len(action.tokens) for action in actions)),
        environment_steps=fmean(steps),
        actions={agent: count / len(episodes) for agent, count in counts.items()},
        source=source,
    )
    return Recorded(known, fmean(idle))


def _acting(episode: Episode) -> float:
    """Seconds in which any of its agents was at work."""
    total, until = 0.0, 0.0
    for started, ended in sorted((action.started, action.ended) for action in episode.actions):
        total += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return total
