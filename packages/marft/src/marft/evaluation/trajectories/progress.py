"""Progress metrics for environments with ``StepInfo.progress``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, team_ratio


def goal_progress(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``p_T``, the last declared progress."""
    declared = _declared_progress(episode)
    return team_ratio(declared[-1] if declared else None)


def trajectory_score(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``(1/T) Σ_t p_t``, the mean declared progress over ``T`` steps.

    Late or temporary progress lowers this score. Goal progress depends on the end alone.
    """
    declared = _declared_progress(episode)
    return team_ratio(sum(declared) / len(declared) if declared else None)


def _declared_progress(episode: Episode) -> list[float]:
    """Return the declared progress values in step order."""
    progress = (transition.declared.progress for transition in episode.transitions)
    return [share for share in progress if share is not None]
