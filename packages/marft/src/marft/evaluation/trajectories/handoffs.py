"""Handoff loops: two agents that pass control back and forth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import TEAM, Ratio, Ratios

ROUND_TRIPS = 2  # maximum number of round trips without a loop


def handoffs(episode: Episode) -> Iterator[list[str]]:
    """Yield the sequences of agents in control.

    An agent hands over to the next agent of the same environment step if that agent saw its action.
    """
    held: list[str] = []
    for before, after in pairwise(episode.actions):
        held = held or [before.agent]
        if before.step != after.step or before.id not in after.sees:
            yield held
            held = []
        elif before.agent != after.agent:
            held.append(after.agent)
    if held:
        yield held


def looping(held: Sequence[str]) -> set[str]:
    """Return the agents in handoff loops: ``a → b → a`` more than twice in a row.

    >>> sorted(looping("abababa")), looping("ababab"), looping("abacabacaba")
    (['a', 'b'], set(), set())
    """
    found, start = set[str](), 0
    for place in range(2, len(held) + 1):
        if place == len(held) or held[place] != held[place - 2]:
            if (place - start - 1) // 2 > ROUND_TRIPS:
                found |= {held[start], held[start + 1]}
            start = place - 1
    return found


def handoff_loop_rate(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``looping / episodes``, the share of episodes with a handoff loop.

    Two agents form a loop if they pass control back and forth more than twice within one environment step. For an
    agent, only loops that include it count.
    """
    found = set[str]().union(*map(looping, handoffs(episode)))
    return {TEAM: Ratio(float(bool(found))), **{role: Ratio(float(role in found)) for role in roles}}
