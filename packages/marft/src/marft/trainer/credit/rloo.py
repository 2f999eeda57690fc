"""REINFORCE leave-one-out (RLOO: Ahmadian et al. 2024)."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.parts import CreditPart
from marft.rewards.groups import compare
from marft.trainer.credit.returns import group_names, team_costs, team_returns, to_actions
from marft.trainer.interfaces import CreditInputs, Credits


class RLOO(CreditPart):
    """``R_j − mean R`` over the other episodes of the task."""

    grouped_by: ClassVar[Literal["task", ""]] = "task"

    def assign(self, inputs: CreditInputs) -> Credits:
        """Compare each episode's team return with the mean of the group's other attempts."""
        keys = [episode.task.id for episode in inputs.episodes]
        advantages, metrics = compare(team_returns(inputs), keys, leave_one_out=True, costs=team_costs(inputs))
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return Credits(to_actions(inputs, advantages), groups=groups, metrics=metrics)
