"""How far ahead of the learner groups are begun, so that none of them is too old when its turn comes.

A group is all that is played of one task of the endless pass over tasks, and its number is its place there. Groups are
learned from in the order of their numbers, ``per_step`` in a step. After AReaL (Fu et al. 2025, §5.1): a policy of
version v may begin as many as steps v to v + k learn from; whoever is among them is learned from after k more versions
at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable


def end_of_room(first: int, given_up: int, *, lag: int, per_step: int, steps_left: int) -> int:
    """The number from which on no group may be begun yet.

    >>> end_of_room(first=8, given_up=0, lag=1, per_step=4, steps_left=10)
    16

    Args:
        first: the first group that the step may learn from which comes now.
        given_up: groups from there on that nobody will learn from, as far as is known.
        lag: k, versions that a policy may be newer than the one that acted.
        steps_left: that groups are needed for.
    """
    return first + given_up + per_step * min(lag + 1, steps_left)


def age(version: int, lowest: Iterable[int]) -> int:
    """How many versions a policy is newer than the one that sampled the oldest token of a group.

    >>> age(7, [6, 5, 7]), age(7, [])
    (2, 0)
    """
    return max(0, version - min(lowest, default=version))
