"""Whether an episode took more steps than its task needs. It needs ``Declared.fewest_steps``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, of_team


def step_efficiency(episode: Episode, _: Sequence[str]) -> Ratios:
    """``S · L / max(L, T)``: ``S`` is 1 where the task was solved and else 0, ``L`` the fewest steps in which it can be
    (as declared last), ``T`` the environment steps that the episode took (SPL: Anderson et al. 2018, eq. 1)."""
    declared = (transition.declared.fewest_steps for transition in reversed(episode.transitions))
    fewest = next((steps for steps in declared if steps is not None), None)
    if fewest is None or episode.success is None:
        return {}
    return of_team(episode.success * fewest / max(fewest, len(episode.transitions)))
