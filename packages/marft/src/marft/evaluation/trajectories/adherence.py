"""Role adherence for environments with ``Declared.allowed_tools``."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, by_agent
from marft.evaluation.trajectories.tool_use import declared_at


def role_adherence(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``kept / actions``, the share of actions that call only allowed tools.

    Only actions of roles with declared tools count.
    """

    def kept(action: Action) -> tuple[float, float]:
        allowed = declared_at(episode, action).allowed_tools
        if allowed is None or action.agent not in allowed:
            return 0.0, 0.0
        mine = allowed[action.agent]
        return all(call.name in mine for call in action.calls if call.name), 1.0

    return by_agent(episode.actions, kept)
