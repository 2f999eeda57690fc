"""Step efficiency for environments with ``StepInfo.fewest_steps``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, team_ratio


def step_efficiency(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``S · L / max(L, T)`` (SPL: Anderson et al. 2018, eq. 1).

    ``S`` is 1 if the task was solved, else 0. ``L`` is the minimum number of steps for the task, as declared last.
    ``T`` is the number of environment steps in the episode.
    """
    declared = (transition.declared.fewest_steps for transition in reversed(episode.transitions))
    min_steps = next((steps for steps in declared if steps is not None), None)
    if min_steps is None or episode.success is None:
        return {}
    return team_ratio(episode.success * min_steps / max(min_steps, len(episode.transitions)))
