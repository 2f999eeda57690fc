"""Line search on an update (HATRPO: Kuba et al. 2022), and scaling of an update to a KL budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft.trainer.optimizers import PolicyOptimizer, PolicySnapshot
from marft.trainer.team_kl import fit_to_budget

BACKTRACK_STEPS = 5  # maximum halvings of a rejected update before it is undone

Optimizers = Mapping[str, PolicyOptimizer]


def backtrack_update(
    optimizers: Optimizers, before: Mapping[str, PolicySnapshot], is_good: Callable[[], bool]
) -> float:
    """Scale back a change of policies until ``is_good`` returns True; else undo the change.

    Undoing also restores the optimizer state.

    Args:
        optimizers: optimizers of the changed policies.
        before: snapshots before the change.
        is_good: test of the current policies.

    Returns:
        The accepted fraction of the change; 0 if undone.
    """
    after = {name: optimizer.snapshot() for name, optimizer in optimizers.items()}
    fraction = 1.0
    for _ in range(BACKTRACK_STEPS + 1):
        if is_good():
            return fraction
        fraction /= 2
        for name, optimizer in optimizers.items():
            optimizer.interpolate(before[name], after[name], fraction)
    for name, optimizer in optimizers.items():
        optimizer.restore(before[name])
    return 0.0


def scale_to_budget(
    optimizers: Optimizers, before: Mapping[str, PolicySnapshot], measure: Callable[[], float], budget: float
) -> tuple[float, float]:
    """Scale back a change of policies, all by the same fraction, until its KL is within ``budget``; else undo the
    change.

    An accepted change keeps its optimizer moments. Undoing restores them.

    Args:
        optimizers: optimizers of the changed policies.
        before: snapshots before the change.
        measure: function that returns the KL of the current policies, in nats.
        budget: maximum KL, in nats.

    Returns:
        The accepted fraction of the change, and its KL.
    """
    kl, fraction = measure(), 1.0
    if kl <= budget:
        return fraction, kl
    after = {name: optimizer.snapshot() for name, optimizer in optimizers.items()}
    for _ in range(BACKTRACK_STEPS):
        fraction *= fit_to_budget(kl, budget)
        for name, optimizer in optimizers.items():
            optimizer.interpolate(before[name], after[name], fraction)
        kl = measure()
        if kl <= budget:
            return fraction, kl
    for name, optimizer in optimizers.items():
        optimizer.restore(before[name])
    return 0.0, measure()
