"""Preference pairs between attempts at a task, instead of advantages (DPO: Rafailov et al. 2023)."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.parts import CreditPart
from marft.trainer.credit.returns import agent_costs, agent_returns, earned_returns, group_names, team_costs
from marft.trainer.credit.sides import Pairing, Side, Weighing, comparisons, signs, trained_of
from marft.trainer.interfaces import CreditInputs, Credits


class Preference(CreditPart):
    """Pairs of better and worse attempts at a task, for objective ``dpo``.

    The recorded advantage is the pair's weight, positive for the better side and negative for the worse side.

    ``sides = "team"`` compares joint trajectories. The loss sees the sum of the log-ratios of all agents' actions. An
    agent's gradient is therefore smaller if its teammates already separate the two attempts. ``sides = "agent"``
    computes a separate loss for each agent's own actions.
    """

    grouped_by: ClassVar[Literal["task", ""]] = "task"
    makes_pairs: ClassVar[bool] = True
    absolute: ClassVar[bool] = True

    # "extremes": best against worst; "ranked": also second best against second worst, and so on; "all": every pair with
    # different rewards
    pairs: Pairing = "extremes"
    sides: Literal["team", "agent"] = "team"  # compare all actions of an attempt, or each agent's actions
    # with sides = "agent", the reward for comparison: everything earned, or the team reward plus the agent's own reward
    judged_by: Literal["team", "own"] = "team"
    weights: Weighing = "equal"  # "gap": weight of a pair is its difference in reward, net of KL costs

    @property
    def by_agent(self) -> bool:
        """True if agents have separate pairs and separate rewards."""
        return self.sides == "agent" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> Credits:
        """Return pairs between attempts at the same task, or between an agent's parts."""
        sides = self._of_agents(inputs) if self.sides == "agent" else self._of_teams(inputs)
        found, metrics = comparisons(sides, self.pairs, self.weights)
        advantages, trained = signs(found, inputs.actions)
        by_agent = self.sides == "agent"
        groups = group_names(inputs, lambda e, action: [e.task.id, action.agent] if by_agent else [e.task.id])
        return Credits(
            inputs.spread(advantages), trained=trained, groups=groups, comparisons=found, metrics=metrics
        )  # fmt: skip

    def _of_teams(self, inputs: CreditInputs) -> list[Side]:
        return [
            Side(episode.task.id, "", float(earned), float(cost), trained_of(inputs, episode.actions))
            for episode, earned, cost in zip(
                inputs.episodes, earned_returns(inputs), team_costs(inputs), strict=True
            )
        ]  # fmt: skip

    def _of_agents(self, inputs: CreditInputs) -> list[Side]:
        own, costs = agent_returns(inputs), agent_costs(inputs)
        of_team, of_team_costs = earned_returns(inputs), team_costs(inputs)
        sides = []
        for number, episode in enumerate(inputs.episodes):
            for agent, net in own[number].items():
                cost = costs[number][agent]
                earned = net + cost
                if self.judged_by == "team":
                    earned, cost = float(of_team[number]), float(of_team_costs[number])
                mine = trained_of(inputs, [action for action in episode.actions if action.agent == agent])
                sides.append(Side(episode.task.id, agent, earned, cost, mine))
        return sides
