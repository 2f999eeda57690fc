"""Returns and costs by episode, agent and action for credit assignment (formulas §5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from marft.common.types import Action, Episode
from marft.rewards.shaping import local_rewards
from marft.trainer.interfaces import CreditInputs, Floats, split_rows


def group_names(inputs: CreditInputs, key_of: Callable[[Episode, Action], Sequence[object]]) -> list[str]:
    """Return the group name of each action: the parts of its key, joined by spaces.

    Args:
        inputs: episodes of the batch.
        key_of: function that returns the key of an action; an empty key means no group.
    """
    return [" ".join(map(str, key_of(e, action))) for e in inputs.episodes for action in e.actions]


def team_returns(inputs: CreditInputs) -> Floats:
    """Return R for each episode, shape [E].

    R is undiscounted: all rewards of the team and its agents, minus the KL costs.
    """
    return team_rewards(inputs) - team_costs(inputs)


def team_rewards(inputs: CreditInputs) -> Floats:
    """Return R for each episode before costs, shape [E]."""
    rewards = [episode.total_reward + sum(local_rewards(episode).values()) for episode in inputs.episodes]
    return np.array(rewards, np.float64)


def team_costs(inputs: CreditInputs) -> Floats:
    """Return the total cost per episode, shape [E]."""
    totals, first = [], 0
    for episode in inputs.episodes:
        totals.append(sum(inputs.cost_of(first + k) for k in range(len(episode.actions))))
        first += len(episode.actions)
    return np.array(totals, np.float64)


def costs_to_go(inputs: CreditInputs) -> list[Floats]:
    """Return the cost-to-go per decision, its own cost included: an array per action."""
    rows, first = [], 0
    for episode in inputs.episodes:
        episode_costs = inputs.costs[first : first + len(episode.actions)]
        first += len(episode.actions)
        if episode_costs:
            rows += split_rows(
                np.concatenate(episode_costs)[::-1].cumsum()[::-1], [len(costs) for costs in episode_costs]
            )
    return rows


def compute_to_go(inputs: CreditInputs) -> tuple[list[dict[int, float]], list[dict[int, float]]]:
    """Return the reward-to-go and cost-to-go for each episode and each step with actions.

    >>> compute_to_go(CreditInputs(episodes=(), level="action"))
    ([], [])

    Returns:
        Two lists with one dictionary per episode, from environment step to total reward and to total cost.
    """
    rewards_to_go: list[dict[int, float]] = []
    costs: list[dict[int, float]] = []
    first = 0
    for episode in inputs.episodes:
        step_rewards = np.array([t.reward + sum(t.agent_rewards.values()) for t in episode.transitions], np.float64)
        step_costs = np.zeros(len(step_rewards))
        for k, action in enumerate(episode.actions, first):
            step_costs[action.step] += inputs.cost_of(k)
        first += len(episode.actions)
        steps = sorted({action.step for action in episode.actions})
        for rows, step_values in ((rewards_to_go, step_rewards), (costs, step_costs)):
            rows.append({step: float(step_values[step:].sum()) for step in steps})
    return rewards_to_go, costs


def agent_costs(inputs: CreditInputs) -> list[dict[str, float]]:
    """Return the total cost per acting agent, a dictionary per episode."""
    results, first = [], 0
    for episode in inputs.episodes:
        costs = dict.fromkeys((action.agent for action in episode.actions), 0.0)
        for k, action in enumerate(episode.actions):
            costs[action.agent] += inputs.cost_of(first + k)
        first += len(episode.actions)
        results.append(costs)
    return results


def agent_returns(inputs: CreditInputs) -> list[dict[str, float]]:
    """Return R for each acting agent, a dictionary per episode.

    R is the team's return, plus the agent's own rewards, minus the agent's own costs.
    """
    results = []
    for episode, costs in zip(inputs.episodes, agent_costs(inputs), strict=True):
        local = local_rewards(episode)
        results.append({agent: episode.total_reward + local.get(agent, 0.0) - cost for agent, cost in costs.items()})
    return results


def broadcast_to_actions(inputs: CreditInputs, episode_values: Floats) -> list[Floats]:
    """Broadcast a number per episode to every decision in its actions.

    Args:
        inputs: episodes of the batch.
        episode_values: one number per episode, shape [E].
    """
    counts = [len(episode.actions) for episode in inputs.episodes]
    return inputs.broadcast(np.repeat(episode_values, counts))
