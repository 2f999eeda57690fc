"""What an episode cost, in tokens, seconds and money, and how long it could not be made shorter by acting at once."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import Ratios, an_episode, of_team


def message_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """``Σ_a Σ_{b ∈ sees(a)} tokens``: what agents read of others; of an agent, what others read of its messages."""
    owners = {action.id: action.agent for action in episode.actions}
    read = (
        (owners[seen], float(tokens))
        for action in episode.actions
        for seen, tokens in zip(action.sees, action.message_tokens, strict=True)
    )
    return an_episode(read, roles)


def cost_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """``Σ_a |prompt_a| + |tokens_a|``: what was read and written, prompts counted at every action that has them."""
    return an_episode(((a.agent, float(len(a.prompt) + len(a.tokens))) for a in episode.actions), roles)


def cost_seconds(episode: Episode, roles: Sequence[str]) -> Ratios:
    """``Σ_a ended_a − started_a``: how long agents were busy, waiting for their engine and their tools included."""
    return an_episode(((a.agent, a.ended - a.started) for a in episode.actions), roles)


def cost_money(episode: Episode, roles: Sequence[str]) -> Ratios:
    """``Σ_a cost_a``: what endpoints were paid for actions that came about, by the recipe's prices."""
    return an_episode(((a.agent, a.usage.cost) for a in episode.actions if a.usage), roles)


def critical_path_seconds(episode: Episode, _: Sequence[str]) -> Ratios:
    """``Σ_t max_{a in step t} L(a)`` with ``L(a) = ended_a − started_a + max_b L(b)`` over the actions ``b`` of the
    step that ``a`` has seen or goes on from: the longest chain of actions each of which had to wait for the one before.
    Steps of the environment follow each other. What the environment itself takes is not in it."""
    steps: dict[int, dict[str, float]] = {}  # L, by step and action
    for action in episode.actions:
        here = steps.setdefault(action.step, {})
        waited = max((here[b] for b in (*action.sees, *action.continues) if b in here), default=0.0)
        here[action.id] = action.ended - action.started + waited
    return of_team(sum(max(longest.values()) for longest in steps.values()))
