"""Returns and costs by episode, agent and action for credit assignment (formulas §5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, islice

import numpy as np

from marft.common.types import Action, Episode
from marft.config.interfaces.credit import CreditInputs, Floats, split_rows
from marft.rewards.shaping import local_rewards


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
    return np.array([sum(costs) for costs in action_costs(inputs)], np.float64)


def action_costs(inputs: CreditInputs) -> list[list[float]]:
    """Return the total cost per action, a list per episode."""
    rows = map(inputs.action_kl_cost, count())
    return [list(islice(rows, len(episode.actions))) for episode in inputs.episodes]


def costs_to_go(inputs: CreditInputs) -> list[Floats]:
    """Return the cost-to-go per decision, its own cost included: an array per action."""
    result, rows = list[Floats](), iter(inputs.costs)
    for episode in inputs.episodes:
        if episode_costs := list(islice(rows, len(episode.actions))):
            to_go = np.concatenate(episode_costs)[::-1].cumsum()[::-1]
            result += split_rows(to_go, [len(costs) for costs in episode_costs])
    return result


def compute_to_go(inputs: CreditInputs) -> tuple[list[dict[int, float]], list[dict[int, float]]]:
    """Return the reward-to-go and cost-to-go for each episode and each step with actions.

    >>> compute_to_go(CreditInputs(episodes=(), level="action"))
    ([], [])

    Returns:
        Two lists with one dictionary per episode, from environment step to total reward and to total cost.
    """
    rewards_to_go: list[dict[int, float]] = []
    costs: list[dict[int, float]] = []
    for episode, own_costs in zip(inputs.episodes, action_costs(inputs), strict=True):
        step_rewards = np.array([t.reward + sum(t.agent_rewards.values()) for t in episode.transitions], np.float64)
        step_costs = np.zeros(len(step_rewards))
        for action, cost in zip(episode.actions, own_costs, strict=True):
            step_costs[action.step] += cost
        steps = sorted({action.step for action in episode.actions})
        for rows, step_values in ((rewards_to_go, step_rewards), (costs, step_costs)):
            rows.append({step: float(step_values[step:].sum()) for step in steps})
    return rewards_to_go, costs


def agent_costs(inputs: CreditInputs) -> list[dict[str, float]]:
    """Return the total cost per acting agent, a dictionary per episode."""
    results = []
    for episode, own_costs in zip(inputs.episodes, action_costs(inputs), strict=True):
        costs = dict.fromkeys((action.agent for action in episode.actions), 0.0)
        for action, cost in zip(episode.actions, own_costs, strict=True):
            costs[action.agent] += cost
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
