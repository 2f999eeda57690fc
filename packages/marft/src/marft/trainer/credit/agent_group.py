"""Group-relative advantages for each agent separately (Dr. MAS).

Each agent has its own baseline, because agents earn different rewards. An agent with five turns in an episode counts
once in its group, not five times.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import normalize_by_group
from marft.trainer.credit.returns import agent_costs, agent_returns, group_names


class AgentGroup(Credit):
    """``(R_i − mean) / (std + ε)`` over the trajectories of agent i at a task."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"

    scale_rewards: bool = Field(default=True, description="divide by the group's standard deviation")

    @property
    def per_agent(self) -> bool:
        """True: agents have separate baselines."""
        return True

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare an agent's return with its returns in the group's other attempts."""
        rows = [
            (number, agent, reward)
            for number, agents in enumerate(agent_returns(inputs))
            for agent, reward in agents.items()
        ]
        keys = [(inputs.episodes[number].task.id, agent) for number, agent, _ in rows]
        costs = np.array([cost for episode_costs in agent_costs(inputs) for cost in episode_costs.values()])
        advantages, metrics = normalize_by_group(
            np.array([reward for *_, reward in rows]), keys, scale=self.scale_rewards, costs=costs
        )
        by_agent = {(number, agent): advantage for (number, agent, _), advantage in zip(rows, advantages, strict=True)}
        by_action = [by_agent[n, a.agent] for n, episode in enumerate(inputs.episodes) for a in episode.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, action.agent])
        return CreditOutput(inputs.broadcast(np.array(by_action)), groups=groups, metrics=metrics)
