"""Which of the attempts at a task are preferred to which (DPO: Rafailov et al. 2023): pairs instead of advantages."""

from __future__ import annotations

from typing import ClassVar, Literal

from marft.config.parts import CreditPart
from marft.trainer.credit.returns import agent_costs, agent_returns, earned_returns, group_names, team_costs
from marft.trainer.credit.sides import Pairing, Side, Weighing, comparisons, signs, trained_of
from marft.trainer.interfaces import CreditInputs, Credits


class Preference(CreditPart):
    """Better against worse attempts at a task, for objective ``dpo``. What is recorded as an advantage is +1 or −1
    times the pair's weight.

    ``sides = "team"`` compares joint trajectories: the log-ratios of all agents' actions are added up before the loss
    is taken, so an agent is pushed less where its teammates already tell the two apart. ``"agent"`` takes a loss of
    each agent's own actions.
    """

    grouped_by: ClassVar[Literal["task", ""]] = "task"
    makes_pairs: ClassVar[bool] = True
    absolute: ClassVar[bool] = True

    # best against worst; best against worst, second against last but one, …; or all that differ
    pairs: Pairing = "extremes"
    sides: Literal["team", "agent"] = "team"  # what is compared: all actions of an attempt, or each agent's by itself
    # of sides = "agent", by what: all that was earned, or what the team earned and the agent itself
    judged_by: Literal["team", "own"] = "team"
    weights: Weighing = "equal"  # gap: a pair weighs by how much its sides differ in what they earned

    @property
    def by_agent(self) -> bool:
        """Whether an agent is compared with itself alone."""
        return self.sides == "agent" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> Credits:
        """Pairs of attempts at the same task, or of an agent's parts of them."""
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
