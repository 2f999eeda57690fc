"""Per-agent rewards with an adaptive weight for the global reward (after CoMAM, arXiv 2603.12631).

The paper weighs the global reward for each agent by its consistency with the agent's local reward. Consistency means
that both rewards rank a group's episodes in a similar order. The paper gives only the idea of the weight function. This
is OUR READING, not a quotation: each agent's weight is a ``consistency`` measure, with 0 for negative values.

If an agent's local reward is constant within a group, there is no ranking, and the weight is ``fallback_weight``. An
agent without a local signal is thus judged by the team's reward. If the global reward is constant within a group, its
weight does not matter. Such groups are excluded from the weight metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from marft.config.parts import CreditPart
from marft.config.settings import NotNegative, did_you_mean
from marft.rewards.groups import EQUAL, compare, members
from marft.rewards.shaping import local_rewards
from marft.trainer.credit.consistency import CONSISTENCIES, Consistency
from marft.trainer.credit.returns import agent_costs, group_names
from marft.trainer.interfaces import CreditInputs, Credits, Floats


class CoMAM(CreditPart):
    """``local_i + w_i · global``, compared over the trajectories of agent i at a task."""

    grouped_by: ClassVar[Literal["task", ""]] = "task"
    ranks_own: ClassVar[bool] = True

    scale: bool = True  # divide by the group's standard deviation
    # measure for w_i: "spearman" (ρ), "kendall" (τ_b) or "ndcg" of the two rewards in the group; negative becomes 0
    consistency: Consistency = "spearman"
    fallback_weight: NotNegative = 1.0  # w_i if the agent's local reward is constant in its group
    fixed_weights: dict[str, NotNegative] = {}  # constant w_i by role; 0 uses the local reward alone

    @property
    def by_agent(self) -> bool:
        """True: agents have separate rewards and baselines."""
        return True

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each role in ``fixed_weights`` that is not in the team."""
        for role in self.fixed_weights:
            if role not in roles:
                yield f"algorithm.credit.fixed_weights: no agent is called {role!r}{did_you_mean(role, roles)}"

    def assign(self, inputs: CreditInputs) -> Credits:
        """Compare the weighted reward (local plus global) with the rest of the group."""
        rows: list[tuple[int, str, float, float, float]] = []  # episode, agent, local, global, cost
        for number, (episode, costs) in enumerate(zip(inputs.episodes, agent_costs(inputs), strict=True)):
            local = local_rewards(episode)
            rows += [(number, agent, local.get(agent, 0.0), episode.total_reward, c) for agent, c in costs.items()]
        keys = [(inputs.episodes[number].task.id, agent) for number, agent, *_ in rows]
        mine, whole, cost = (np.array([row[column] for row in rows]) for column in (2, 3, 4))
        weights, found = np.zeros(len(rows)), []
        for indices in members(keys):
            weighed = self._weighed(keys[indices[0]][1], mine[indices], whole[indices])
            weights[indices] = weighed.weight
            found.append(weighed)
        advantages, metrics = compare(mine + weights * whole - cost, keys, scale=self.scale, costs=cost)
        metrics |= weight_metrics(found)
        by_row = {row[:2]: advantage for row, advantage in zip(rows, advantages, strict=True)}
        by_action = [by_row[n, a.agent] for n, episode in enumerate(inputs.episodes) for a in episode.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, action.agent])
        return Credits(inputs.spread(np.array(by_action)), groups=groups, metrics=metrics)

    def _weighed(self, agent: str, local: Floats, whole: Floats) -> Weighed:
        """Return the weight for the global reward in an agent's group."""
        silent, told = bool(np.ptp(local) < EQUAL), bool(np.ptp(whole) >= EQUAL)
        if agent in self.fixed_weights:
            return Weighed(agent, self.fixed_weights[agent], silent, False, told)
        if silent:
            return Weighed(agent, self.fallback_weight, silent, True, told)
        return Weighed(agent, max(0.0, CONSISTENCIES[self.consistency](local, whole)), silent, False, told)


class Weighed(NamedTuple):
    """Weight for the global reward in an agent's group.

    Args:
        agent: name of the agent.
        weight: w_i of the group.
        silent: True if the local reward is constant.
        fallen_back: True if the weight is ``fallback_weight``.
        told: True if the global reward varies, so that the weight matters.
    """

    agent: str
    weight: float
    silent: bool
    fallen_back: bool
    told: bool


def weight_metrics(groups: Sequence[Weighed]) -> dict[str, float]:
    """Return mean weights and fallback fractions, for the team and each agent.

    Only groups with a varying global reward count. Agents without such a group are omitted.

    >>> weight_metrics([Weighed("a", 0.5, False, False, True), Weighed("a", 1.0, True, True, False)])["global_weight"]
    0.5
    """
    metrics = {"groups_without_local_signal": float(sum(group.silent for group in groups))}
    by_prefix: dict[str, list[Weighed]] = {}
    for group in groups:
        for prefix in ("", f"agents/{group.agent}/") if group.told else ():
            by_prefix.setdefault(prefix, []).append(group)
    for prefix, some in by_prefix.items():
        metrics[f"{prefix}global_weight"] = sum(group.weight for group in some) / len(some)
        metrics[f"{prefix}fallback_fraction"] = sum(group.fallen_back for group in some) / len(some)
    return metrics
