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
from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats
from marft.config.settings import NonNegative, did_you_mean
from marft.rewards.groups import EQUAL_TOLERANCE, group_indices, normalize_by_group
from marft.rewards.shaping import local_rewards
from marft.trainer.credit.consistency import CONSISTENCY_FUNCTIONS, Consistency
from marft.trainer.credit.returns import agent_costs, group_names


class CoMAM(Credit):
    """``local_i + w_i · global``, compared over the trajectories of agent i at a task."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"
    ranks_own_rewards: ClassVar[bool] = True

    scale_rewards: bool = Field(default=True, description="divide by the group's standard deviation")
    consistency: Consistency = Field(
        default="spearman",
        description=(
            'measure for w_i: "spearman" (ρ), "kendall" (τ_b) or "ndcg" of the two rewards in the group; '
            "negative becomes 0"
        ),
    )
    fallback_weight: NonNegative = Field(
        default=1.0, description="w_i if the agent's local reward is constant in its group"
    )
    fixed_weights: dict[str, NonNegative] = Field(
        default={}, description="constant w_i by role; 0: only the local reward"
    )

    @property
    def per_agent(self) -> bool:
        """True: agents have separate rewards and baselines."""
        return True

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each role in ``fixed_weights`` that is not in the team."""
        for role in self.fixed_weights:
            if role not in roles:
                yield f"algorithm.credit.fixed_weights: no agent is called {role!r}{did_you_mean(role, roles)}"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare the weighted reward (local plus global) with the rest of the group."""
        rows: list[tuple[int, str, float, float, float]] = []  # episode, agent, local, global, cost
        for number, (episode, costs) in enumerate(zip(inputs.episodes, agent_costs(inputs), strict=True)):
            local = local_rewards(episode)
            rows += [(number, agent, local.get(agent, 0.0), episode.total_reward, c) for agent, c in costs.items()]
        keys = [(inputs.episodes[number].task.id, agent) for number, agent, *_ in rows]
        own_rewards, global_rewards, cost = (np.array([row[column] for row in rows]) for column in (2, 3, 4))
        weights, group_weights = np.zeros(len(rows)), []
        for indices in group_indices(keys):
            group_weight = self._compute_weight(keys[indices[0]][1], own_rewards[indices], global_rewards[indices])
            weights[indices] = group_weight.weight
            group_weights.append(group_weight)
        advantages, metrics = normalize_by_group(
            own_rewards + weights * global_rewards - cost, keys, scale=self.scale_rewards, costs=cost
        )
        metrics |= weight_metrics(group_weights)
        by_row = {row[:2]: advantage for row, advantage in zip(rows, advantages, strict=True)}
        by_action = [by_row[n, a.agent] for n, episode in enumerate(inputs.episodes) for a in episode.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, action.agent])
        return CreditOutput(inputs.broadcast(np.array(by_action)), groups=groups, metrics=metrics)

    def _compute_weight(self, agent: str, local: Floats, global_rewards: Floats) -> GroupWeight:
        """Return the weight for the global reward in an agent's group."""
        is_local_constant, has_global_signal = (
            bool(np.ptp(local) < EQUAL_TOLERANCE),
            bool(np.ptp(global_rewards) >= EQUAL_TOLERANCE),
        )
        if agent in self.fixed_weights:
            return GroupWeight(agent, self.fixed_weights[agent], is_local_constant, False, has_global_signal)
        if is_local_constant:
            return GroupWeight(agent, self.fallback_weight, is_local_constant, True, has_global_signal)
        return GroupWeight(
            agent,
            max(0.0, CONSISTENCY_FUNCTIONS[self.consistency](local, global_rewards)),
            is_local_constant,
            False,
            has_global_signal,
        )


class GroupWeight(NamedTuple):
    """Weight for the global reward in an agent's group.

    Args:
        agent: name of the agent.
        weight: w_i of the group.
        is_local_constant: True if the local reward is constant.
        is_fallback: True if the weight is ``fallback_weight``.
        has_global_signal: True if the global reward varies, so that the weight matters.
    """

    agent: str
    weight: float
    is_local_constant: bool
    is_fallback: bool
    has_global_signal: bool


def weight_metrics(groups: Sequence[GroupWeight]) -> dict[str, float]:
    """Return mean weights and fallback fractions, for the team and each agent.

    Only groups with a varying global reward count. Agents without such a group are omitted.

    >>> weights = [GroupWeight("a", 0.5, False, False, True), GroupWeight("a", 1.0, True, True, False)]
    >>> weight_metrics(weights)["global_weight"]
    0.5
    """
    metrics = {"groups_without_local_signal": float(sum(group.is_local_constant for group in groups))}
    by_prefix: dict[str, list[GroupWeight]] = {}
    for group in groups:
        for prefix in ("", f"agents/{group.agent}/") if group.has_global_signal else ():
            by_prefix.setdefault(prefix, []).append(group)
    for prefix, prefix_groups in by_prefix.items():
        metrics[f"{prefix}global_weight"] = sum(group.weight for group in prefix_groups) / len(prefix_groups)
        metrics[f"{prefix}fallback_fraction"] = sum(group.is_fallback for group in prefix_groups) / len(prefix_groups)
    return metrics
