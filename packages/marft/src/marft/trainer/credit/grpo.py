"""Group-relative advantages over attempts at the same task (GRPO: Shao et al. 2024; Dr.GRPO: Liu et al. 2025)."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.parts import CreditPart
from marft.rewards.groups import compare
from marft.trainer.credit.returns import group_names, team_costs, team_returns, to_actions
from marft.trainer.interfaces import CreditInputs, Credits


class GRPO(CreditPart):
    """``(R − mean) / (std + ε)`` over the episodes of a task; ``scale = false`` skips the division (Dr.GRPO)."""

    grouped_by: ClassVar[Literal["task", ""]] = "task"

    scale: bool = True  # divide by the group's standard deviation

    def assign(self, inputs: CreditInputs) -> Credits:
        """Compare each episode's team return with its group's mean."""
        keys = [episode.task.id for episode in inputs.episodes]
        advantages, metrics = compare(team_returns(inputs), keys, scale=self.scale, costs=team_costs(inputs))
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return Credits(to_actions(inputs, advantages), groups=groups, metrics=metrics)
