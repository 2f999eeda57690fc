"""Taking an update only as far as it is good for something (HATRPO's line search: Kuba et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft.learning.optimizers import PolicyOptimizer, Snapshot

BACKTRACKS = 5  # halvings of an update that is not good, before it is undone


def accept(
    optimizers: Mapping[str, PolicyOptimizer], before: Mapping[str, Snapshot], is_good: Callable[[], bool]
) -> float:
    """Scale a change of policies back until it ``is_good``, else undo it, and what the optimizers have made of it.

    Args:
        before: what the policies were before the change.

    Returns:
        The fraction of the change that is kept.
    """
    after = {name: optimizer.snapshot() for name, optimizer in optimizers.items()}
    fraction = 1.0
    for _ in range(BACKTRACKS + 1):
        if is_good():
            return fraction
        fraction /= 2
        for name, optimizer in optimizers.items():
            optimizer.place_between(before[name], after[name], fraction)
    for name, optimizer in optimizers.items():
        optimizer.restore(before[name])
    return 0.0
