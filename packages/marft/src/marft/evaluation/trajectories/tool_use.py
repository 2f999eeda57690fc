"""How well agents use tools: whether calls go wrong, and whether they are of the right tools."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.declared import Declared
from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, by_agent


def declared_at(episode: Episode, action: Action) -> Declared:
    """What is declared of the environment step that an action is part of; nothing where the step never ended."""
    return episode.transitions[action.step].declared if action.step < len(episode.transitions) else Declared()


def tool_error_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """``failed / calls``: calls that could not be read, or failed, of all."""
    return by_agent(episode.actions, lambda action: (sum(call.error for call in action.calls), len(action.calls)))


def tool_selection_accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """``right / calls``: of the calls that name a tool, in steps whose ``Declared.right_tools`` are known, those of
    such a tool. What failed counts: it was chosen. A call that was not made is none."""

    def chosen(action: Action) -> tuple[float, float]:
        right = declared_at(episode, action).right_tools if action.calls else None
        if right is None:
            return 0.0, 0.0
        names = [call.name for call in action.calls if call.name]
        return sum(name in right for name in names), len(names)

    return by_agent(episode.actions, chosen)
