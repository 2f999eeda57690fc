"""Handoff loops: two agents that pass control back and forth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import TEAM, Ratio, Ratios

MAX_ROUND_TRIPS = 2  # maximum number of round trips without a loop


def iter_handoffs(episode: Episode) -> Iterator[list[str]]:
    """Yield the sequences of agents in control.

    An agent hands over to the next agent of the same environment step if that agent saw its action.
    """
    control: list[str] = []
    for before, after in pairwise(episode.actions):
        control = control or [before.agent]
        if before.step != after.step or before.id not in after.sees:
            yield control
            control = []
        elif before.agent != after.agent:
            control.append(after.agent)
    if control:
        yield control


def find_loops(control: Sequence[str]) -> set[str]:
    """Return the agents in handoff loops: ``a → b → a`` more than twice in a row.

    >>> sorted(find_loops("abababa")), find_loops("ababab"), find_loops("abacabacaba")
    (['a', 'b'], set(), set())
    """
    agents, start = set[str](), 0
    for index in range(2, len(control) + 1):
        if index == len(control) or control[index] != control[index - 2]:
            if (index - start - 1) // 2 > MAX_ROUND_TRIPS:
                agents |= {control[start], control[start + 1]}
            start = index - 1
    return agents


def handoff_loop_rate(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``looping / episodes``, the share of episodes with a handoff loop.

    Two agents form a loop if they pass control back and forth more than twice within one environment step. For an
    agent, only loops that include it count.
    """
    loop_agents = set[str]().union(*map(find_loops, iter_handoffs(episode)))
    return {TEAM: Ratio(float(bool(loop_agents))), **{role: Ratio(float(role in loop_agents)) for role in roles}}
