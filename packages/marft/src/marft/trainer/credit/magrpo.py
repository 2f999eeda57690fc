"""MAGRPO: group-relative joint return from each agent's turn on (Liu et al. 2025).

Attempts at a task form a group, compared separately at each turn. ``aligned`` combines the g-th samples of all agents,
as played. ``cross`` scores every combination of the agents' samples. The return of a sample is then the mean over the
combinations that contain the sample, and the baseline is the agent's own mean. ``cross`` needs a game of one step in
which no agent sees another agent's action.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.common.types import ActionKey
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import normalize_by_group
from marft.rollout.fork_plans import CrossProductForks
from marft.trainer.credit.returns import compute_to_go, group_names, team_costs, team_returns


class MAGRPO(Credit):
    """``R_t − mean R_t`` over a task's episodes with a turn t.

    R_t is the joint return from environment step t on. ``scale_rewards = true`` also divides by the standard deviation.
    """

    comparison_group: ClassVar[Literal["task", ""]] = "task"

    joint_mode: Literal["aligned", "cross"] = Field(
        default="aligned", description='"cross": score every combination of the agents\' samples'
    )
    scale_rewards: bool = Field(default=False, description="divide by the group's standard deviation")

    @property
    def fork_plan(self) -> CrossProductForks | None:
        """Fork mode for ``cross``; None for ``aligned``."""
        return CrossProductForks() if self.joint_mode == "cross" else None

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare the return from each turn on with the group at the same turn."""
        return self._assign_cross(inputs) if self.joint_mode == "cross" else self._assign_aligned(inputs)

    def _assign_aligned(self, inputs: CreditInputs) -> CreditOutput:
        rewards, costs = compute_to_go(inputs)
        turns = [(number, step) for number, by_step in enumerate(rewards) for step in by_step]
        turn_costs = np.array([costs[number][step] for number, step in turns])
        net = np.array([rewards[number][step] for number, step in turns]) - turn_costs
        keys = [(inputs.episodes[number].task.id, step) for number, step in turns]
        advantages, metrics = normalize_by_group(net, keys, scale=self.scale_rewards, costs=turn_costs)
        by_turn = dict(zip(turns, advantages, strict=True))
        by_action = [by_turn[n, action.step] for n, e in enumerate(inputs.episodes) for action in e.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, "step", action.step])
        return CreditOutput(inputs.broadcast(np.array(by_action)), groups=groups, metrics=metrics)

    def _assign_cross(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each sample's mean return over the combinations that contain the sample."""
        sample_returns: dict[ActionKey, list[tuple[float, float]]] = {}  # net return and cost of each combination
        for episode, net, cost in zip(inputs.episodes, team_returns(inputs), team_costs(inputs), strict=True):
            for action in episode.actions:
                sample_returns.setdefault(action.key, []).append((float(net), float(cost)))
        means = np.array([np.mean(tuples, axis=0) for tuples in sample_returns.values()]).reshape(
            len(sample_returns), 2
        )
        agents = [(key.task, key.agent, key.call) for key in sample_returns]
        advantages, metrics = normalize_by_group(means[:, 0], agents, scale=self.scale_rewards, costs=means[:, 1])
        by_sample = dict(zip(sample_returns, advantages, strict=True))
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        return CreditOutput(
            inputs.broadcast(np.array([by_sample[action.key] for _, action in rows])),
            trained=[episode.fork is None for episode, _ in rows],
            groups=group_names(inputs, lambda _, action: [action.key.task, action.agent, action.key.call]),
            metrics=metrics,
        )
