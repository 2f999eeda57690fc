"""Limits on asynchronous rollouts, so that no group exceeds the maximum policy lag.

A group holds every episode played for one draw from the endless pass over the tasks. Its number is the index of the
draw. Training steps consume groups in order, ``per_step`` groups per step. The limit follows AReaL (Fu et al. 2025,
§5.1): a policy of version v may start all groups for steps v to v + k. Each of these groups is then trained on at most
k versions later.
"""

from __future__ import annotations

from collections.abc import Iterable


def first_blocked_group(first: int, discarded: int, *, lag: int, per_step: int, remaining_steps: int) -> int:
    """Return the number of the first group blocked by the lag limit.

    >>> first_blocked_group(first=8, discarded=0, lag=1, per_step=4, remaining_steps=10)
    16

    Args:
        first: number of the first group that the next step may train on.
        discarded: number of known discarded groups from ``first`` on.
        lag: k, the maximum age of training data in policy versions.
        per_step: groups per training step.
        remaining_steps: remaining training steps that need groups.
    """
    return first + discarded + per_step * min(lag + 1, remaining_steps)


def max_lag(version: int, lowest: Iterable[int]) -> int:
    """Return the age, in policy versions, of the oldest token in a group.

    >>> max_lag(7, [6, 5, 7]), max_lag(7, [])
    (2, 0)

    Args:
        version: current version of the policy.
        lowest: lowest policy version that sampled a token, for each action.
    """
    return max(0, version - min(lowest, default=version))
