"""MAGRPO: group-relative joint return from each agent's turn on (Liu et al. 2025).

Attempts at a task form a group, compared separately at each turn. ``aligned`` combines the g-th samples of all agents,
as played. ``cross`` scores every combination of the agents' samples. The return of a sample is then the mean over the
combinations that contain the sample, and the baseline is the agent's own mean. ``cross`` needs a game of one step in
which no agent sees another agent's action.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from marft.common.types import ActionKey
from marft.config.parts import CreditPart
from marft.rewards.groups import compare
from marft.rollout.forking.crossed import Crossed
from marft.trainer.credit.returns import earned_from, group_names, team_costs, team_returns
from marft.trainer.interfaces import CreditInputs, Credits


class MAGRPO(CreditPart):
    """``R_t − mean R_t`` over a task's episodes with a turn t.

    R_t is the joint return from environment step t on. ``scale = true`` also divides by the standard deviation.
    """

    grouped_by: ClassVar[Literal["task", ""]] = "task"

    joint_mode: Literal["aligned", "cross"] = "aligned"  # "cross": score every combination of the agents' samples
    scale: bool = False  # divide by the group's standard deviation

    @property
    def forking(self) -> Crossed | None:
        """Fork mode for ``cross``; None for ``aligned``."""
        return Crossed() if self.joint_mode == "cross" else None

    def assign(self, inputs: CreditInputs) -> Credits:
        """Compare the return from each turn on with the group at the same turn."""
        return self._cross(inputs) if self.joint_mode == "cross" else self._aligned(inputs)

    def _aligned(self, inputs: CreditInputs) -> Credits:
        earned, costs = earned_from(inputs)
        turns = [(number, step) for number, of_steps in enumerate(earned) for step in of_steps]
        price = np.array([costs[number][step] for number, step in turns])
        net = np.array([earned[number][step] for number, step in turns]) - price
        keys = [(inputs.episodes[number].task.id, step) for number, step in turns]
        advantages, metrics = compare(net, keys, scale=self.scale, costs=price)
        found = dict(zip(turns, advantages, strict=True))
        by_action = [found[n, action.step] for n, e in enumerate(inputs.episodes) for action in e.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, "step", action.step])
        return Credits(inputs.spread(np.array(by_action)), groups=groups, metrics=metrics)

    def _cross(self, inputs: CreditInputs) -> Credits:
        """Compare each sample's mean return over the combinations that contain the sample."""
        held: dict[ActionKey, list[tuple[float, float]]] = {}  # net return and cost of each combination
        for episode, net, cost in zip(inputs.episodes, team_returns(inputs), team_costs(inputs), strict=True):
            for action in episode.actions:
                held.setdefault(action.key, []).append((float(net), float(cost)))
        means = np.array([np.mean(tuples, axis=0) for tuples in held.values()]).reshape(len(held), 2)
        agents = [(key.task, key.agent, key.call) for key in held]
        advantages, metrics = compare(means[:, 0], agents, scale=self.scale, costs=means[:, 1])
        found = dict(zip(held, advantages, strict=True))
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        return Credits(
            inputs.spread(np.array([found[action.key] for _, action in rows])),
            trained=[episode.fork is None for episode, _ in rows],
            groups=group_names(inputs, lambda _, action: [action.key.task, action.agent, action.key.call]),
            metrics=metrics,
        )
