"""Slow references of comparisons: which attempts make pairs, and what a pair's loss is, in plain loops and float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marft.common.types import Episode

EQUAL = 1e-8
Pair = tuple[int, int, str]  # the better and the worse attempt, by their place; whose actions, "" of all


def earned(episode: Episode) -> float:
    return sum(t.reward + sum(t.agent_rewards.values()) for t in episode.transitions)


def earned_by(episode: Episode, agent: str) -> float:
    return sum(t.reward + t.agent_rewards.get(agent, 0.0) for t in episode.transitions)


def pairs(batch: Sequence[Episode], which: str, sides: str, judged_by: str) -> tuple[set[Pair], int]:
    """Pairs, and how many more there would be if their sides had not earned the same."""
    found: set[Pair] = set()
    equal = 0
    agents = sorted({a.agent for e in batch for a in e.actions}) if sides == "agent" else [""]
    for task in {e.task.id for e in batch}:
        for agent in agents:
            members = [n for n, e in enumerate(batch) if e.task.id == task
                       and (not agent or any(a.agent == agent for a in e.actions))]  # fmt: skip
            own = agent and judged_by == "own"
            worth = {n: earned_by(batch[n], agent) if own else earned(batch[n]) for n in members}
            ranking = sorted(members, key=lambda n: (-worth[n], n))
            for i, better in enumerate(ranking):
                for j, worse in enumerate(ranking):
                    if j <= i or (which != "all" and j != len(ranking) - 1 - i) or (which == "extremes" and i > 0):
                        continue
                    if worth[better] - worth[worse] < EQUAL:
                        equal += 1
                    elif any(not agent or a.agent == agent for n in (better, worse) for a in batch[n].actions):
                        found.add((better, worse, agent))
    return found, equal


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > -30 else x


def loss(
    better: float, worse: float, mean_log_prob: float, lengths: tuple[int, int], *, beta: float, kind: str = "sigmoid",
    label_smoothing: float = 0.0, margin: float = 0.0, length_penalty: float = 0.0, nll_coefficient: float = 0.0,
) -> float:  # fmt: skip
    """Of one comparison (Rafailov et al. 2023, eq. 7), from the log-ratios of its sides."""
    h = better - worse
    if kind == "ipo":
        return (h - 1 / (2 * beta)) ** 2 - nll_coefficient * mean_log_prob
    z = beta * h + length_penalty * (lengths[0] - lengths[1]) - margin
    soft = -(1 - label_smoothing) * log_sigmoid(z) - label_smoothing * log_sigmoid(-z)
    return soft - nll_coefficient * mean_log_prob
