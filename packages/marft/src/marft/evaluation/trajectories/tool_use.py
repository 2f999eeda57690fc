"""Tool-use metrics: failed calls and the choice of tools."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.declared import Declared
from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, by_agent


def declared_at(episode: Episode, action: Action) -> Declared:
    """Return the declarations for an action's environment step; empty if the step did not finish."""
    return episode.transitions[action.step].declared if action.step < len(episode.transitions) else Declared()


def tool_error_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``failed / calls``, the share of failed or unparsable tool calls."""
    return by_agent(episode.actions, lambda action: (sum(call.error for call in action.calls), len(action.calls)))


def tool_selection_accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``right / calls``, the share of calls to a right tool.

    It covers calls that name a tool, in steps with declared ``Declared.right_tools``. Failed calls count, because the
    tool was chosen. Missing calls do not count.
    """

    def chosen(action: Action) -> tuple[float, float]:
        right = declared_at(episode, action).right_tools if action.calls else None
        if right is None:
            return 0.0, 0.0
        names = [call.name for call in action.calls if call.name]
        return sum(name in right for name in names), len(names)

    return by_agent(episode.actions, chosen)
