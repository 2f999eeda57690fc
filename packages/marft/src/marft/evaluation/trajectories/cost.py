"""Episode costs in tokens, seconds and money, and the critical path."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, sum_amounts, team_ratio


def message_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a Σ_{b ∈ sees(a)} tokens``, the message tokens that agents read.

    For an agent, it counts the tokens of its messages that others read.
    """
    owners = {action.id: action.agent for action in episode.actions}
    amounts = (
        (owners[seen], float(tokens))
        for action in episode.actions
        for seen, tokens in zip(action.sees, action.message_tokens, strict=True)
    )
    return sum_amounts(amounts, roles)


def cost_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a |prompt_a| + |tokens_a|``, all tokens read and written.

    A prompt counts again for each action that includes it.
    """
    return sum_amounts(((a.agent, float(len(a.prompt) + len(a.tokens))) for a in episode.actions), roles)


def cost_seconds(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a ended_a − started_a``, the busy seconds of agents with waits for the engine and tools."""
    return sum_amounts(((a.agent, a.ended - a.started) for a in episode.actions), roles)


def cost_money(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a cost_a``, the endpoint costs of completed actions, at the recipe's prices."""
    return sum_amounts(((a.agent, a.usage.cost) for a in episode.actions if a.usage), roles)


def critical_path_seconds(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``Σ_t max_{a in step t} L(a)``, the longest chain of dependent actions in seconds.

    ``L(a) = ended_a − started_a + max_b L(b)`` over the actions ``b`` of the step that ``a`` has seen or continues.
    Environment steps are sequential. Time spent by the environment itself is not included.
    """
    steps: dict[int, dict[str, float]] = {}  # L, by step and action ID
    for action in episode.actions:
        path_seconds = steps.setdefault(action.step, {})
        waited = max((path_seconds[b] for b in (*action.sees, *action.continues) if b in path_seconds), default=0.0)
        path_seconds[action.id] = action.ended - action.started + waited
    return team_ratio(sum(max(longest.values()) for longest in steps.values()))
