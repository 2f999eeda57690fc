"""What rewards become before credit is assigned (formulas §5; DAPO: Yu et al. 2025; MARTI's shaping)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.common.types import Episode


@dataclass
class Pay:
    """What one environment step earned the team, and each agent for itself."""

    team: float
    own: dict[str, float]

    def whole(self) -> float:
        return self.team + sum(self.own.values())


def payments(episode: Episode, settings: Any, limits: Mapping[str, int], trained: Collection[str]) -> list[Pay]:
    """For each environment step.

    Args:
        settings: ``algorithm.reward``.
        limits: ``max_new_tokens`` by agent.
        trained: agents whose policies learn; nobody else pays for its length.
    """
    pays = [Pay(t.reward, dict(t.agent_rewards)) for t in episode.transitions]
    if settings.shaping != "none":
        _shape(episode, pays, settings.shaping, settings.shaping_weight)
    for pay in pays:
        pay.team *= settings.team_weight
        pay.own = {agent: settings.own_weight * reward for agent, reward in pay.own.items()}
    if settings.overlong_buffer:
        _price_length(episode, pays, settings.overlong_buffer, limits, trained)
    return pays


def _shape(episode: Episode, pays: Sequence[Pay], kind: str, weight: float) -> None:
    """R' = R + αΔ against Q, the mean of the trajectory's earlier graded actions."""
    earlier: list[float] = []
    for t, pay in enumerate(pays):
        spoken: list[str] = []
        for action in episode.actions:
            if action.step == t and action.agent not in spoken:
                spoken.append(action.agent)
        for agent in spoken:
            if agent in pay.own:
                reward = pay.own[agent]
                if earlier:
                    q = sum(earlier) / len(earlier)
                    margin = reward - q
                    quality = q * reward - (1 - q) * (1 - reward)
                    pay.own[agent] = reward + weight * (margin if kind == "margin" else quality)
                earlier.append(reward)


def _price_length(
    episode: Episode, pays: Sequence[Pay], buffer: int, limits: Mapping[str, int], trained: Collection[str]
) -> None:
    """0 up to L_max − L_cache tokens, then linearly down to −1 at L_max (DAPO eq. 13)."""
    for action in episode.actions:
        if action.choice is None and action.agent in trained:
            length = sum(mark == 0 for mark in action.marks.tolist())
            over = length - (limits[action.agent] - buffer)
            if over > 0 and action.step < len(pays):
                own = pays[action.step].own
                own[action.agent] = own.get(action.agent, 0.0) - over / buffer
