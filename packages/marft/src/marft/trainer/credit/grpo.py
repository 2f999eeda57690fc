"""Group-relative advantages over attempts at the same task (GRPO: Shao et al. 2024; Dr.GRPO: Liu et al. 2025)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import normalize_by_group
from marft.trainer.credit.returns import broadcast_to_actions, group_names, team_costs, team_returns


class GRPO(Credit):
    """``(R − mean) / (std + ε)`` over the episodes of a task; ``scale_rewards = false``: no division (Dr.GRPO)."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"

    scale_rewards: bool = Field(default=True, description="divide by the group's standard deviation")

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each episode's team return with its group's mean."""
        keys = [episode.task.id for episode in inputs.episodes]
        advantages, metrics = normalize_by_group(
            team_returns(inputs), keys, scale=self.scale_rewards, costs=team_costs(inputs)
        )
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return CreditOutput(broadcast_to_actions(inputs, advantages), groups=groups, metrics=metrics)
