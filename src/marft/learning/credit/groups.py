"""Comparing rewards inside groups that are formed from explicit keys (formulas §5)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from marft.learning.interfaces import CreditInputs, Floats, split_rows
from marft.types import Action, Episode

EQUAL = 1e-8  # rewards whose range is below this count as equal
EPSILON = 1e-8


def compare(
    rewards: Floats,
    keys: Sequence[Hashable],
    *,
    scale: bool = True,
    leave_one_out: bool = False,
    costs: Floats | None = None,
) -> tuple[Floats, dict[str, float]]:
    """Each reward minus its group's mean, over the group's unbiased standard deviation → advantages, group metrics.

    A group of one has nothing to be compared with and an all-equal group tells nobody apart: both get 0, and are
    counted.

    Args:
        keys: what group each reward is in; equal keys, one group.
        scale: divide by the standard deviation.
        leave_one_out: the baseline is the mean of the others (RLOO), nothing is divided.
        costs: what each reward is less for its KL. Whether a group is all-equal goes by what was earned: scaled up,
            differences in KL alone would be full-size steps on noise.

    >>> advantages, metrics = compare(np.array([1.0, 0.0, 5.0]), ["a", "a", "b"], scale=False)
    >>> advantages.tolist(), metrics["groups"], metrics["groups_of_one"]
    ([0.5, -0.5, 0.0], 2.0, 1.0)
    """
    advantages = np.zeros(len(rewards))
    earned = rewards if costs is None else rewards + costs
    groups = members(keys)
    lone = even = 0
    for indices in groups:
        group = rewards[indices]
        if len(group) == 1:
            lone += 1
        elif np.ptp(earned[indices]) < EQUAL:
            even += 1
        elif leave_one_out:
            advantages[indices] = group - (group.sum() - group) / (len(group) - 1)
        else:
            advantages[indices] = (group - group.mean()) / (group.std(ddof=1) + EPSILON if scale else 1.0)
    sizes = [len(indices) for indices in groups]
    metrics = {
        "groups": float(len(groups)),
        "groups_of_one": float(lone),
        "groups_all_equal": float(even),
        "group_size": float(np.mean(sizes)) if sizes else 0.0,
        "group_size_min": float(min(sizes, default=0)),
    }
    return advantages, metrics


def members(keys: Sequence[Hashable]) -> list[list[int]]:
    """Indices of each group, groups in order of first appearance.

    >>> members(["a", "b", "a"])
    [[0, 2], [1]]
    """
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())


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


def local_rewards(episode: Episode) -> dict[str, float]:
    """What each agent earned for itself over the whole episode."""
    earned: dict[str, float] = {}
    for transition in episode.transitions:
        for agent, reward in transition.agent_rewards.items():
            earned[agent] = earned.get(agent, 0.0) + reward
    return earned


def to_actions(inputs: CreditInputs, key_ofs: Floats) -> list[Floats]:
    """One number an episode → one a decision of all its actions."""
    counts = [len(episode.actions) for episode in inputs.episodes]
    return inputs.spread(np.repeat(key_ofs, counts))
