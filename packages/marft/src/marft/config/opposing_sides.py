"""Recipe checks for agents that play against each other: no agent may learn from its opponent's reward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.config.run import RunSettings

TEAM_TERMS = (
    "trajectory",
    "trajectory_score",
    "progress",
    "step_cost",
)  # terms with the same reward for the whole team


def side_problems(run: RunSettings) -> Iterable[str]:
    """Yield credits and rewards that do not support opposing sides, and opponents that would learn."""
    sides, opponents = run.environment.opposing_sides, run.environment.opponent_roles
    if len(sides) > 1:
        yield from _credit_problems(run)
    for agent in run.agents:
        policy = run.policies.get(agent.policy)
        if agent.role in opponents and policy is not None and policy.train != "frozen":
            yield (
                f"agents.{agent.role}: an opponent that the others learn to play against, whose policy "
                f"{agent.policy!r} would learn from what they earn; set policies.{agent.policy}.train = 'frozen', or "
                "environment.opponent = 'self' to have both sides learn"
            )


def _credit_problems(run: RunSettings) -> Iterable[str]:
    credit = run.algorithm.credit
    if not credit.per_agent:
        yield (
            f"algorithm.credit: {credit.name!r} judges agents by what all of them earn together, and the agents of "
            f"environment {run.environment.name!r} play against each other: what one wins the other loses, and nobody "
            "would learn. Use algorithm.name = 'rae', credit 'agent-group' (attempts at a task, each side by itself), "
            "or 'gae' with successor = 'agent'"
        )
    if run.algorithm.reward.own_weight <= 0:
        yield (
            f"algorithm.reward.own_weight: {run.algorithm.reward.own_weight:g} leaves nothing of what a side earns by "
            "itself, and a team whose agents play against each other earns nothing else; set it to 1"
        )
    if run.algorithm.reward.shaping != "none":
        yield (
            "algorithm.reward.shaping: it measures what an agent earns against what the others earned before it, and "
            "here those are opponents; set shaping = 'none'"
        )
    for term in run.rewards:
        if term.name in TEAM_TERMS:
            yield (
                f"rewards: {term.name!r} pays both sides of a game alike, and one of them has lost it; remove it, and "
                "use 'outcome', which pays each side what it earned"
            )
