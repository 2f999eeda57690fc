"""Chains of decisions for the backward flow of credit (formulas §2).

A link table has one row per decision, for all episodes of a batch at once. Row k names its successor. The successor of
a chain's last decision is a terminal row. Its value is 0 for a terminated episode, and V(final) for a truncated
episode. V(final) belongs to the agent of the chain, or to the agent that would decide first in the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from marft.common.types import Action, Episode
from marft.config.interfaces.credit import Floats

Chain = Literal["joint", "agent", "graph"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Link table: a row per decision (K rows), then a terminal row per chain (C rows).

    >>> # two decisions in one step of an episode with reward 1
    >>> Links(np.array([0.0, 1.0, 0.0]), successor=np.array([1, 2, 2]), steps=np.array([0, 1, 0]), ends=[(0, "")]).ends
    [(0, '')]
    """

    rewards: Floats  # [K + C]
    successor: Integers  # [K + C]; terminal rows point to themselves
    steps: Integers  # [K + C] environment steps between a decision and its successor; 0 within a step
    ends: Sequence[tuple[int, str]]  # [C] episode, and agent of the next step; "": the first agent


def build_links(episodes: Sequence[Episode], chain: Chain, gamma_step: float) -> Links:
    """Link the decisions of a batch and assign rewards to them.

    Args:
        episodes: episodes of the batch.
        chain: kind of chain.
        gamma_step: discount for rewards of steps without a decision; these rewards go to the previous decision.
    """
    decisions = sum(len(episode.actions) for episode in episodes)
    rewards, successor, steps = np.zeros(decisions), np.zeros(decisions, np.int64), np.zeros(decisions, np.int64)
    ends: dict[tuple[int, str], int] = {}
    first = 0
    for number, episode in enumerate(episodes):
        actions = episode.actions
        following = _find_successors(actions, chain)
        for k, next_action in enumerate(following):
            if next_action is None:
                end = ends.setdefault((number, _next_agent(actions, k, chain)), decisions + len(ends))
                successor[first + k], end_step = end, len(episode.transitions)
            else:
                successor[first + k], end_step = first + next_action, actions[next_action].step
            steps[first + k] = end_step - actions[k].step
        for k, reward in _assign_rewards(episode, chain, following, gamma_step):
            rewards[first + k] += reward
        first += len(actions)
    terminal = np.zeros(len(ends))
    return Links(
        np.concatenate([rewards, terminal]),
        np.concatenate([successor, np.arange(decisions, decisions + len(ends))]),
        np.concatenate([steps, np.zeros(len(ends), np.int64)]),
        list(ends),
    )


def backward_sum(terms: Floats, weights: Floats, successor: Integers) -> Floats:
    """Return ``x_k = terms_k + weights_k · x_successor(k)`` for all k, in log₂(longest chain) passes.

    The algorithm is pointer doubling. Each pass adds the partial sum at a row's pointer and doubles the distance of the
    pointer. A row that is its own successor ends a chain and counts once.

    >>> backward_sum(np.array([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.0]), np.array([1, 2, 2])).tolist()
    [1.75, 1.5, 1.0]

    Args:
        terms: shape [N].
        weights: shape [N].
        successor: index of each row's successor, shape [N].
    """
    total, weight, pointer = terms.copy(), weights.copy(), successor
    ends = pointer == np.arange(len(pointer))
    weight[ends] = 0.0
    while weight.any():
        total += weight * total[pointer]
        weight *= weight[pointer]
        pointer = pointer[pointer]
    return total


def _find_successors(actions: Sequence[Action], chain: Chain) -> list[int | None]:
    """Return the next decision in the chain for each decision in an episode; None at the end."""
    if chain == "joint":
        return [k + 1 if k + 1 < len(actions) else None for k in range(len(actions))]
    agent_successors: list[int | None] = []
    latest: dict[str, int] = {}
    for k in reversed(range(len(actions))):
        agent_successors.append(latest.get(actions[k].agent))
        latest[actions[k].agent] = k
    agent_successors.reverse()
    return (
        agent_successors
        if chain == "agent"
        else [_find_graph_successor(actions, k, agent_successors[k]) for k in range(len(actions))]
    )


def _find_graph_successor(actions: Sequence[Action], k: int, agent_successor: int | None) -> int | None:
    for j in _same_step(actions, k):
        if actions[k].id in actions[j].sees:
            return j
    if agent_successor is None or actions[agent_successor].step == actions[k].step:
        return agent_successor
    return _find_root(actions, agent_successor)


def _next_agent(actions: Sequence[Action], k: int, chain: Chain) -> str:
    """Return the agent that would decide after a chain's last decision k in a next step; "" is the first agent."""
    if chain == "joint":
        return ""
    return actions[k if chain == "agent" else _find_root(actions, k)].agent


def _find_root(actions: Sequence[Action], k: int) -> int:
    """Return the earliest decision in k's step that k depends on, directly or indirectly, or k itself.

    The result depends on no other decision of the step, because such a decision would be earlier still.
    """
    by_id = {actions[j].id: j for j in _same_step(actions, k)}
    reached, frontier = {k}, [k]
    while frontier:
        new = {by_id[seen] for seen in actions[frontier.pop()].sees if seen in by_id} - reached
        reached |= new
        frontier += new
    return min(reached)


def _same_step(actions: Sequence[Action], k: int) -> range:
    low = high = k
    while low > 0 and actions[low - 1].step == actions[k].step:
        low -= 1
    while high + 1 < len(actions) and actions[high + 1].step == actions[k].step:
        high += 1
    return range(low, high + 1)


def _assign_rewards(
    episode: Episode, chain: Chain, following: Sequence[int | None], gamma_step: float
) -> Iterator[tuple[int, float]]:
    """Yield ``(decision, reward)`` pairs; a reward after Δ steps is discounted by γ_step^Δ."""
    actions = episode.actions
    latest: dict[str, int] = {}  # latest decision of each agent
    k = 0
    for t, transition in enumerate(episode.transitions):
        while k < len(actions) and actions[k].step <= t:
            latest[actions[k].agent] = k
            k += 1
        if not latest:
            continue
        targets = [max(latest.values())] if chain == "joint" else list(latest.values())
        if chain == "graph":
            targets = [j for j in targets if _is_sink(actions, j, following[j])]
        for j in targets:
            yield j, transition.reward * gamma_step ** (t - actions[j].step)
        for agent, reward in transition.agent_rewards.items():
            owner = latest.get(agent)
            if chain == "joint" and (owner is None or actions[owner].step < t):
                owner = max(latest.values())  # team's last decision: later decisions contributed too
            if owner is not None:
                yield owner, reward * gamma_step ** (t - actions[owner].step)


def _is_sink(actions: Sequence[Action], k: int, next_action: int | None) -> bool:
    """Return True if no decision in the same step follows decision k."""
    return next_action is None or actions[next_action].step != actions[k].step
