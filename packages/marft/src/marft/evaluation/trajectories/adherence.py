"""Role adherence for environments with ``StepInfo.allowed_tools``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, sum_by_agent
from marft.evaluation.trajectories.tool_use import get_step_info


def role_adherence(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``count_allowed / actions``, the share of actions that call only allowed tools.

    Only actions of roles with declared tools count.
    """

    def count_allowed(action: Action) -> tuple[float, float]:
        allowed = get_step_info(episode, action).allowed_tools
        if allowed is None or action.agent not in allowed:
            return 0.0, 0.0
        allowed_names = allowed[action.agent]
        return all(call.name in allowed_names for call in action.calls if call.name), 1.0

    return sum_by_agent(episode.actions, count_allowed)
