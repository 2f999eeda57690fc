"""How near an episode came to its goal, and how it went there. Both need ``Declared.progress``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, of_team


def goal_progress(episode: Episode, _: Sequence[str]) -> Ratios:
    """``p_T``: the progress that was declared last."""
    declared = _declared(episode)
    return of_team(declared[-1] if declared else None)


def trajectory_score(episode: Episode, _: Sequence[str]) -> Ratios:
    """``(1/T) Σ_t p_t``: the mean of the progress that was declared after each of ``T`` steps. What comes late, and
    what is lost again on the way, lowers it, where goal progress sees the end alone."""
    declared = _declared(episode)
    return of_team(sum(declared) / len(declared) if declared else None)


def _declared(episode: Episode) -> list[float]:
    """The progress after each step of which it was declared."""
    progress = (transition.declared.progress for transition in episode.transitions)
    return [share for share in progress if share is not None]
