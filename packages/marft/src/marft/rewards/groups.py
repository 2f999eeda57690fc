"""Group normalization of rewards, with groups formed by explicit keys (formulas §5)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
EQUAL_TOLERANCE = 1e-8  # rewards with a smaller range count as equal
EPSILON = 1e-8


def normalize_by_group(
    rewards: Floats,
    keys: Sequence[Hashable],
    *,
    scale: bool = True,
    leave_one_out: bool = False,
    costs: Floats | None = None,
) -> tuple[Floats, dict[str, float]]:
    """Return group-normalized advantages, shape [N], and group metrics.

    An advantage is the reward minus its group's mean, divided by the group's unbiased standard deviation. Groups of one
    and groups with equal rewards have no baseline: they get 0 and are counted.

    Args:
        rewards: [N].
        keys: [N], group of each reward; equal keys form one group.
        scale: divide by the standard deviation.
        leave_one_out: the baseline is the mean of the other rewards (RLOO), without division.
        costs: [N], KL penalties already subtracted from the rewards. Equality within a group is tested before this
            subtraction. Otherwise, differences in KL alone would be scaled up to full-size steps on noise.

    >>> advantages, metrics = normalize_by_group(np.array([1.0, 0.0, 5.0]), ["a", "a", "b"], scale=False)
    >>> advantages.tolist(), metrics["groups"], metrics["singleton_groups"]
    ([0.5, -0.5, 0.0], 2.0, 1.0)
    """
    advantages = np.zeros(len(rewards))
    raw_rewards = rewards if costs is None else rewards + costs
    groups = group_indices(keys)
    num_singletons = num_equal = 0
    for indices in groups:
        group = rewards[indices]
        if len(group) == 1:
            num_singletons += 1
        elif np.ptp(raw_rewards[indices]) < EQUAL_TOLERANCE:
            num_equal += 1
        elif leave_one_out:
            advantages[indices] = group - (group.sum() - group) / (len(group) - 1)
        else:
            advantages[indices] = (group - group.mean()) / (group.std(ddof=1) + EPSILON if scale else 1.0)
    sizes = [len(indices) for indices in groups]
    metrics = {
        "groups": float(len(groups)),
        "singleton_groups": float(num_singletons),
        "zero_variance_groups": float(num_equal),
        "group_size": float(np.mean(sizes)) if sizes else 0.0,
        "group_size_min": float(min(sizes, default=0)),
    }
    return advantages, metrics


def group_indices(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices in each group, with groups in order of first appearance.

    >>> group_indices(["a", "b", "a"])
    [[0, 2], [1]]
    """
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())
