"""Tool-use metrics: failed calls and the choice of tools."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.step_info import StepInfo
from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, sum_by_agent


def get_step_info(episode: Episode, action: Action) -> StepInfo:
    """Return the declarations for an action's environment step; empty if the step did not finish."""
    return episode.transitions[action.step].declared if action.step < len(episode.transitions) else StepInfo()


def tool_error_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``failed / calls``, the share of failed or unparsable tool calls."""
    return sum_by_agent(episode.actions, lambda action: (sum(call.error for call in action.calls), len(action.calls)))


def tool_selection_accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``correct_tools / calls``, the share of calls to a right tool.

    It covers calls that name a tool, in steps with declared ``StepInfo.right_tools``. Failed calls count, because the
    tool was chosen. Missing calls do not count.
    """

    def count_correct(action: Action) -> tuple[float, float]:
        correct_tools = get_step_info(episode, action).right_tools if action.calls else None
        if correct_tools is None:
            return 0.0, 0.0
        names = [call.name for call in action.calls if call.name]
        return sum(name in correct_tools for name in names), len(names)

    return sum_by_agent(episode.actions, count_correct)
