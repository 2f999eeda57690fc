"""REINFORCE leave-one-out (RLOO: Ahmadian et al. 2024)."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import normalize_by_group
from marft.trainer.credit.returns import broadcast_to_actions, group_names, team_costs, team_returns


class RLOO(Credit):
    """``R_j − mean R`` over the other episodes of the task."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each episode's team return with the mean of the group's other attempts."""
        keys = [episode.task.id for episode in inputs.episodes]
        advantages, metrics = normalize_by_group(
            team_returns(inputs), keys, leave_one_out=True, costs=team_costs(inputs)
        )
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return CreditOutput(broadcast_to_actions(inputs, advantages), groups=groups, metrics=metrics)
