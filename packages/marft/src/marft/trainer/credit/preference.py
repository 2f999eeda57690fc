"""Preference pairs between attempts at a task, instead of advantages (DPO: Rafailov et al. 2023)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.trainer.credit.returns import agent_costs, agent_returns, group_names, team_costs, team_rewards
from marft.trainer.credit.sides import (
    Pairing,
    PairSide,
    PairWeighting,
    build_pairs,
    compute_action_weights,
    trained_keys,
)


class Preference(Credit):
    """Pairs of better and worse attempts at a task, for objective ``dpo``.

    The recorded advantage is the pair's weight, positive for the better side and negative for the worse side.

    ``sides = "team"`` compares joint trajectories. The loss sees the sum of the log-ratios of all agents' actions. An
    agent's gradient is therefore smaller if its teammates already separate the two attempts. ``sides = "agent"``
    computes a separate loss for each agent's own actions.
    """

    comparison_group: ClassVar[Literal["task", ""]] = "task"
    makes_pairs: ClassVar[bool] = True
    absolute_weights: ClassVar[bool] = True

    pairs: Pairing = Field(
        default="extremes",
        description=(
            '"extremes": best against worst; "ranked": also second best against second worst, and so on; "all": '
            "every pair with different rewards"
        ),
    )
    sides: Literal["team", "agent"] = Field(
        default="team", description="compare whole attempts, or each agent's actions"
    )
    judged_by: Literal["team", "own"] = Field(
        default="team",
        description=(
            'with sides = "agent", the reward for comparison: everything earned, or the team reward plus the agent\'s '
            "own reward"
        ),
    )
    weights: PairWeighting = Field(
        default="equal", description='"gap": weight of a pair is its difference in reward, net of KL costs'
    )

    @property
    def per_agent(self) -> bool:
        """True if agents have separate pairs and separate rewards."""
        return self.sides == "agent" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return pairs between attempts at the same task, or between an agent's parts."""
        sides = self._agent_sides(inputs) if self.sides == "agent" else self._team_sides(inputs)
        pairs, metrics = build_pairs(sides, self.pairs, self.weights)
        advantages, trained = compute_action_weights(pairs, inputs.actions)
        by_agent = self.sides == "agent"
        groups = group_names(inputs, lambda e, action: [e.task.id, action.agent] if by_agent else [e.task.id])
        return CreditOutput(
            inputs.broadcast(advantages), trained=trained, groups=groups, comparisons=pairs, metrics=metrics
        )

    def _team_sides(self, inputs: CreditInputs) -> list[PairSide]:
        return [
            PairSide(episode.task.id, "", float(reward), float(cost), trained_keys(inputs, episode.actions))
            for episode, reward, cost in zip(inputs.episodes, team_rewards(inputs), team_costs(inputs), strict=True)
        ]

    def _agent_sides(self, inputs: CreditInputs) -> list[PairSide]:
        returns, costs = agent_returns(inputs), agent_costs(inputs)
        all_team_rewards, all_team_costs = team_rewards(inputs), team_costs(inputs)
        sides = []
        for number, episode in enumerate(inputs.episodes):
            for agent, net in returns[number].items():
                cost = costs[number][agent]
                reward = net + cost
                if self.judged_by == "team":
                    reward, cost = float(all_team_rewards[number]), float(all_team_costs[number])
                keys = trained_keys(inputs, [action for action in episode.actions if action.agent == agent])
                sides.append(PairSide(episode.task.id, agent, reward, cost, keys))
        return sides
