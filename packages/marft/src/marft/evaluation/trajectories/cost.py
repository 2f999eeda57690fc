"""Episode costs in tokens, seconds and money, and the critical path."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, an_episode, of_team


def message_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a Σ_{b ∈ sees(a)} tokens``, the message tokens that agents read.

    For an agent, it counts the tokens of its messages that others read.
    """
    owners = {action.id: action.agent for action in episode.actions}
    read = (
        (owners[seen], float(tokens))
        for action in episode.actions
        for seen, tokens in zip(action.sees, action.message_tokens, strict=True)
    )
    return an_episode(read, roles)


def cost_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a |prompt_a| + |tokens_a|``, all tokens read and written.

    A prompt counts again for each action that includes it.
    """
    return an_episode(((a.agent, float(len(a.prompt) + len(a.tokens))) for a in episode.actions), roles)


def cost_seconds(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a ended_a − started_a``, the busy seconds of agents with waits for the engine and tools."""
    return an_episode(((a.agent, a.ended - a.started) for a in episode.actions), roles)


def cost_money(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a cost_a``, the endpoint costs of completed actions, at the recipe's prices."""
    return an_episode(((a.agent, a.usage.cost) for a in episode.actions if a.usage), roles)


def critical_path_seconds(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``Σ_t max_{a in step t} L(a)``, the longest chain of dependent actions in seconds.

    ``L(a) = ended_a − started_a + max_b L(b)`` over the actions ``b`` of the step that ``a`` has seen or continues.
    Environment steps are sequential. Time spent by the environment itself is not included.
    """
    steps: dict[int, dict[str, float]] = {}  # L, by step and action ID
    for action in episode.actions:
        here = steps.setdefault(action.step, {})
        waited = max((here[b] for b in (*action.sees, *action.continues) if b in here), default=0.0)
        here[action.id] = action.ended - action.started + waited
    return of_team(sum(max(longest.values()) for longest in steps.values()))
