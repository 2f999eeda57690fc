"""Task completion and team reward of an episode."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, team_ratio


def accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return 1 if the task was solved and 0 if not; absent if success is unknown."""
    return team_ratio(None if episode.success is None else float(episode.success))


def reward(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``Σ_t r_t``, the team reward over all environment steps."""
    return team_ratio(episode.total_reward)
