"""Returns and costs of episodes, agents and actions, by which credit compares them (formulas §5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from marft.common.types import Action, Episode
from marft.rewards.shaping import local_rewards
from marft.trainer.interfaces import CreditInputs, Floats, split_rows


def group_names(inputs: CreditInputs, key_of: Callable[[Episode, Action], Sequence[object]]) -> list[str]:
    """What the group of each action is called: the parts of its key.

    Args:
        key_of: the key of an action of an episode; an empty one is none.
    """
    return [" ".join(map(str, key_of(e, action))) for e in inputs.episodes for action in e.actions]


def team_returns(inputs: CreditInputs) -> Floats:
    """R of each episode: undiscounted, all that the team and its agents earned, minus the costs, [E]."""
    return earned_returns(inputs) - team_costs(inputs)


def earned_returns(inputs: CreditInputs) -> Floats:
    """R of each episode before its costs, [E]."""
    earned = [episode.total_reward + sum(local_rewards(episode).values()) for episode in inputs.episodes]
    return np.array(earned, np.float64)


def team_costs(inputs: CreditInputs) -> Floats:
    """What is taken off the return of each episode, [E]."""
    totals, first = [], 0
    for episode in inputs.episodes:
        totals.append(sum(inputs.cost_of(first + k) for k in range(len(episode.actions))))
        first += len(episode.actions)
    return np.array(totals, np.float64)


def costs_to_come(inputs: CreditInputs) -> list[Floats]:
    """What is still taken off the return from each decision on, its own cost included: one array an action."""
    rows, first = [], 0
    for episode in inputs.episodes:
        mine = inputs.costs[first : first + len(episode.actions)]
        first += len(episode.actions)
        if mine:
            rows += split_rows(np.concatenate(mine)[::-1].cumsum()[::-1], [len(costs) for costs in mine])
    return rows


def earned_from(inputs: CreditInputs) -> tuple[list[dict[int, float]], list[dict[int, float]]]:
    """For each episode and each of its steps with actions: all that is earned from that step on, and all that it costs.

    >>> earned_from(CreditInputs(episodes=(), level="action"))
    ([], [])
    """
    earned: list[dict[int, float]] = []
    costs: list[dict[int, float]] = []
    first = 0
    for episode in inputs.episodes:
        pay = np.array([t.reward + sum(t.agent_rewards.values()) for t in episode.transitions], np.float64)
        price = np.zeros(len(pay))
        for k, action in enumerate(episode.actions, first):
            price[action.step] += inputs.cost_of(k)
        first += len(episode.actions)
        steps = sorted({action.step for action in episode.actions})
        for rows, of_steps in ((earned, pay), (costs, price)):
            rows.append({step: float(of_steps[step:].sum()) for step in steps})
    return earned, costs


def agent_costs(inputs: CreditInputs) -> list[dict[str, float]]:
    """What is taken off the return of each agent that acted in each episode."""
    results, first = [], 0
    for episode in inputs.episodes:
        costs = dict.fromkeys((action.agent for action in episode.actions), 0.0)
        for k, action in enumerate(episode.actions):
            costs[action.agent] += inputs.cost_of(first + k)
        first += len(episode.actions)
        results.append(costs)
    return results


def agent_returns(inputs: CreditInputs) -> list[dict[str, float]]:
    """R of each agent that acted in each episode: the team's return, and its own rewards minus its own costs."""
    results = []
    for episode, costs in zip(inputs.episodes, agent_costs(inputs), strict=True):
        local = local_rewards(episode)
        results.append({agent: episode.total_reward + local.get(agent, 0.0) - cost for agent, cost in costs.items()})
    return results


def to_actions(inputs: CreditInputs, key_ofs: Floats) -> list[Floats]:
    """One number an episode → one a decision of all its actions."""
    counts = [len(episode.actions) for episode in inputs.episodes]
    return inputs.spread(np.repeat(key_ofs, counts))
