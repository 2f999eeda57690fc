"""Comparing rewards inside groups that are formed from explicit keys (formulas §5)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
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
    """Return each reward minus its group's mean, over the group's unbiased standard deviation, and group metrics.

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
