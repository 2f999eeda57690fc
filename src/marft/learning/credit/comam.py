"""Agents with rewards of their own and an adaptive share of the global one (after CoMAM, arXiv 2603.12631).

The paper weighs an agent's share of the global reward by how consistently its local reward ranks a group's episodes
with the global one. The function that makes a weight of that is ours, not the paper's: Spearman's rank correlation, and
0 where it is negative. Where an agent's local reward is the same throughout the group there is nothing to rank, and the
weight is ``fallback_weight``: an agent without a signal of its own is judged by the team's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from marft.config.parts import CreditPart
from marft.config.settings import NotNegative
from marft.learning.credit.groups import EQUAL, agent_costs, compare, group_names, local_rewards, members
from marft.learning.interfaces import CreditInputs, Credits, Floats


class CoMAM(CreditPart):
    """``local_i + w_i · global``, compared over the trajectories of agent i at a task."""

    grouped_by: ClassVar[Literal["task", ""]] = "task"

    scale: bool = True  # divide by the deviation
    fallback_weight: NotNegative = 1.0  # w_i of an agent whose local reward is the same throughout its group

    @property
    def by_agent(self) -> bool:
        """Rewards of its own and the team's, and nobody else's."""
        return True

    def assign(self, inputs: CreditInputs) -> Credits:
        """The team's and the agent's own normalised rewards, weighed by how they go together."""
        rows: list[tuple[int, str, float, float, float]] = []  # episode, agent, local, global, cost
        for number, (episode, costs) in enumerate(zip(inputs.episodes, agent_costs(inputs), strict=True)):
            local = local_rewards(episode)
            rows += [(number, agent, local.get(agent, 0.0), episode.total_reward, c) for agent, c in costs.items()]
        keys = [(inputs.episodes[number].task.id, agent) for number, agent, *_ in rows]
        mine, whole, cost = (np.array([row[column] for row in rows]) for column in (2, 3, 4))
        weights, silent = np.zeros(len(rows)), 0
        for indices in members(keys):
            if np.ptp(mine[indices]) < EQUAL:
                weights[indices], silent = self.fallback_weight, silent + 1
            else:
                weights[indices] = max(0.0, rank_correlation(mine[indices], whole[indices]))
        advantages, metrics = compare(mine + weights * whole - cost, keys, scale=self.scale, costs=cost)
        metrics["global_weight"] = float(weights.mean()) if len(weights) else 0.0
        metrics["groups_without_local_signal"] = float(silent)
        found = {row[:2]: advantage for row, advantage in zip(rows, advantages, strict=True)}
        by_action = [found[n, a.agent] for n, episode in enumerate(inputs.episodes) for a in episode.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, action.agent])
        return Credits(inputs.spread(np.array(by_action)), groups=groups, metrics=metrics)


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's ρ with mean ranks for ties; 0 where either is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    if np.ptp(a) < EQUAL or np.ptp(b) < EQUAL:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    """Mean ranks, each half a rank too high: no correlation sees that."""
    return np.array([(values < v).sum() + 0.5 * (values == v).sum() for v in values], np.float64)
