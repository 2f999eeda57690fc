"""Whether two agents pass control back and forth, in place of going on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from marft.common.types import Episode
from marft.evaluation.trajectories.ratio import TEAM, Ratio, Ratios

ROUND_TRIPS = 2  # that are no loop yet


def handoffs(episode: Episode) -> Iterator[list[str]]:
    """Who held control one after the other, in stretches: an agent hands over to the one that acts next in the same
    environment step, having seen what it did."""
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
    """The agents of pairs that control goes back and forth between, ``a → b → a``, more than twice in a row.

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
    """``looping / episodes``: episodes in which two agents pass control back and forth more than twice within one
    environment step, of all; of an agent, those in which it is one of the two."""
    found = set[str]().union(*map(looping, handoffs(episode)))
    return {TEAM: Ratio(float(bool(found))), **{role: Ratio(float(role in found)) for role in roles}}
