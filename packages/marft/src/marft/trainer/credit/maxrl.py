"""MaxRL: a policy gradient of the likelihood of success (Tajwar et al. 2026).

The gradient of ``log p`` for a success rate p is the gradient of p divided by p. A group of N attempts estimates the
first N − 1 terms of its expansion in failures. Tasks that are seldom solved therefore weigh more than under GRPO.

The paper has rewards 0 and 1. MARFT also takes rewards between them, with the same formula.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from marft.common.errors import UserError
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import group_indices, normalize_by_group
from marft.trainer.credit.returns import broadcast_to_actions, group_names, team_rewards

OUT_OF_RANGE = (
    "algorithm.credit: maxrl needs team rewards between 0 and 1, and {episode} earned {reward:g}; scale the rewards "
    "(the weights of its terms), or use credit 'grpo'"
)


class MaxRL(Credit):
    """``(R − mean) / mean`` over the episodes of a task; 0 if no attempt earned anything."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"
    reads_costs: ClassVar[bool] = False

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each episode's team reward with its group's mean, in units of that mean.

        Raises:
            UserError: a reward is outside of [0, 1].
        """
        rewards = team_rewards(inputs)
        for episode, reward in zip(inputs.episodes, rewards, strict=True):
            if not 0 <= reward <= 1:
                raise UserError(OUT_OF_RANGE.format(episode=episode.name, reward=reward))
        keys = [episode.task.id for episode in inputs.episodes]
        advantages, metrics = normalize_by_group(rewards, keys, scale=False)
        means = np.ones(len(rewards))
        for indices in group_indices(keys):
            means[indices] = rewards[indices].mean() or 1.0
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return CreditOutput(broadcast_to_actions(inputs, advantages / means), groups=groups, metrics=metrics)
