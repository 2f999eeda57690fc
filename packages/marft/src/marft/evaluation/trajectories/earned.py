"""What an episode earned: task completion, and the team's reward."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, of_team


def accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Task completion: ``1`` where the task was solved, ``0`` where it was not; absent where nobody says."""
    return of_team(None if episode.success is None else float(episode.success))


def reward(episode: Episode, _: Sequence[str]) -> Ratios:
    """``Σ_t r_t``: what the environment's steps paid the team."""
    return of_team(episode.total_reward)
