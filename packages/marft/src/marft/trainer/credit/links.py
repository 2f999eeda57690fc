"""How decisions follow each other: the three chains along which credit flows back (formulas §2).

A link table has one row a decision, for all episodes of a batch at once. Row k names its successor; the successor of
a chain's last decision is a terminal row, worth 0 when the episode terminated and V(final) when it was truncated: of
the agent whose chain it is, or of the one that would decide first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from marft.common.types import Action, Episode
from marft.trainer.interfaces import Floats

Chain = Literal["joint", "agent", "graph"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """One row for each of K decisions, then one terminal row for each of C chains.

    >>> # two decisions in one step of an episode with reward 1
    >>> Links(np.array([0.0, 1.0, 0.0]), successor=np.array([1, 2, 2]), steps=np.array([0, 1, 0]), ends=[(0, "")]).ends
    [(0, '')]
    """

    rewards: Floats  # [K + C]
    successor: Integers  # [K + C]; a terminal row is its own
    steps: Integers  # [K + C] environment steps between a decision and its successor; 0 within a step
    ends: Sequence[tuple[int, str]]  # [C] episode, and whose way into the next step it is; "": the first


def link(episodes: Sequence[Episode], chain: Chain, gamma_step: float) -> Links:
    """Link the decisions of a batch and lay the rewards on them.

    Args:
        gamma_step: discounts rewards of steps in which nobody decided, which go to the decision before.
    """
    decisions = sum(len(episode.actions) for episode in episodes)
    rewards, successor, steps = np.zeros(decisions), np.zeros(decisions, np.int64), np.zeros(decisions, np.int64)
    ends: dict[tuple[int, str], int] = {}
    first = 0
    for number, episode in enumerate(episodes):
        actions = episode.actions
        following = _successors(actions, chain)
        for k, after in enumerate(following):
            if after is None:
                end = ends.setdefault((number, _leads_on(actions, k, chain)), decisions + len(ends))
                successor[first + k], arrival = end, len(episode.transitions)
            else:
                successor[first + k], arrival = first + after, actions[after].step
            steps[first + k] = arrival - actions[k].step
        for k, reward in _payments(episode, chain, following, gamma_step):
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
    """``x_k = terms_k + weights_k · x_successor(k)`` for all k at once, in log₂(longest chain) passes.

    Pointer doubling: each pass adds the sum that starts at a row's pointer and lets the pointer jump twice as far.
    Rows that are their own successor end a chain: what they hold counts once.

    >>> backward_sum(np.array([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.0]), np.array([1, 2, 2])).tolist()
    [1.75, 1.5, 1.0]
    """
    total, weight, pointer = terms.copy(), weights.copy(), successor
    ends = pointer == np.arange(len(pointer))
    weight[ends] = 0.0
    while weight.any():
        total += weight * total[pointer]
        weight *= weight[pointer]
        pointer = pointer[pointer]
    return total


def _successors(actions: Sequence[Action], chain: Chain) -> list[int | None]:
    """For each decision of an episode the next one of its chain; None at the end."""
    if chain == "joint":
        return [k + 1 if k + 1 < len(actions) else None for k in range(len(actions))]
    own: list[int | None] = []
    latest: dict[str, int] = {}
    for k in reversed(range(len(actions))):
        own.append(latest.get(actions[k].agent))
        latest[actions[k].agent] = k
    own.reverse()
    return own if chain == "agent" else [_graph_successor(actions, k, own[k]) for k in range(len(actions))]


def _graph_successor(actions: Sequence[Action], k: int, own: int | None) -> int | None:
    for j in _same_step(actions, k):
        if actions[k].id in actions[j].sees:
            return j
    if own is None or actions[own].step == actions[k].step:
        return own
    return _root(actions, own)


def _leads_on(actions: Sequence[Action], k: int, chain: Chain) -> str:
    """The agent that would decide after the last decision k of a chain, were there another step; "" is the first."""
    if chain == "joint":
        return ""
    return actions[k if chain == "agent" else _root(actions, k)].agent


def _root(actions: Sequence[Action], k: int) -> int:
    """The earliest decision of k's step that k depends on, directly or not, or k itself. It depends on none: what it
    saw would be earlier still."""
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


def _payments(
    episode: Episode, chain: Chain, following: Sequence[int | None], gamma_step: float
) -> Iterator[tuple[int, float]]:
    """``(decision, reward)``: who is paid what. A decision made Δ steps before its pay gets γ_step^Δ of it."""
    actions = episode.actions
    latest: dict[str, int] = {}  # each agent's last decision so far
    k = 0
    for t, transition in enumerate(episode.transitions):
        while k < len(actions) and actions[k].step <= t:
            latest[actions[k].agent] = k
            k += 1
        if not latest:
            continue
        receivers = [max(latest.values())] if chain == "joint" else list(latest.values())
        if chain == "graph":
            receivers = [j for j in receivers if _is_sink(actions, j, following[j])]
        for j in receivers:
            yield j, transition.reward * gamma_step ** (t - actions[j].step)
        for agent, reward in transition.agent_rewards.items():
            owner = latest.get(agent)
            if chain == "joint" and (owner is None or actions[owner].step < t):
                owner = max(latest.values())  # the team's last decision: those since the agent's own led there too
            if owner is not None:
                yield owner, reward * gamma_step ** (t - actions[owner].step)


def _is_sink(actions: Sequence[Action], k: int, after: int | None) -> bool:
    """Whether nobody in its own step comes after decision k."""
    return after is None or actions[after].step != actions[k].step
