"""Taking an update only as far as it is good for something (HATRPO's line search: Kuba et al. 2022), or as it is
within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft.trainer.optimizers import PolicyOptimizer, Snapshot
from marft.trainer.team_kl import closer

BACKTRACKS = 5  # halvings of an update that is not good, before it is undone

Optimizers = Mapping[str, PolicyOptimizer]


def accept(optimizers: Optimizers, before: Mapping[str, Snapshot], is_good: Callable[[], bool]) -> float:
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


def hold(
    optimizers: Optimizers, before: Mapping[str, Snapshot], measure: Callable[[], float], budget: float
) -> tuple[float, float]:
    """Scale a change of policies back, all by the same fraction, until it moves them by no more than ``budget``; else
    undo it, and what the optimizers have made of it. Moments of a change that is kept stay.

    Args:
        before: what the policies were before the change.
        measure: how far they have moved, as they are, in nats.

    Returns:
        The fraction of the change that is kept, and how far it moves them.
    """
    kl, fraction = measure(), 1.0
    if kl <= budget:
        return fraction, kl
    after = {name: optimizer.snapshot() for name, optimizer in optimizers.items()}
    for _ in range(BACKTRACKS):
        fraction *= closer(kl, budget)
        for name, optimizer in optimizers.items():
            optimizer.place_between(before[name], after[name], fraction)
        kl = measure()
        if kl <= budget:
            return fraction, kl
    for name, optimizer in optimizers.items():
        optimizer.restore(before[name])
    return 0.0, measure()
