"""Trust regions of an update: the joint KL of a team, and the scaling of an update to its limits.

HATRPO accepts an update by a line search (Kuba et al. 2022). A budget bounds the joint KL of a training step. All
agents change together under one reward, so the joint policy has to stay close to the old one. By the chain rule the
joint KL is a sum over the actions of an environment step, each given the actions before,

    KL(π_old ‖ π_new) = E_{o, a ∼ π_old} Σ_i KL(π_old^i(· | o, a^{1:i−1}) ‖ π_new^i(· | o, a^{1:i−1})),

and the KL of an action is the sum over its tokens. With a separate bound per agent (a clip, or a KL limit), a team of n
agents can change n times as much. The budget bounds the sum. All changes are scaled back by the same fraction, which
preserves their relative sizes.

Sources: bounds on ratios by the number of agents, Sun et al. 2023; one KL constraint on all agents, HATRPO-W and
HATRPO-G, 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch

from marft.common.types import ActionKey, Sample
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.schedule import UpdatePhase
from marft.trainer.loss import k3_estimate
from marft.trainer.optimizers import PolicyOptimizer, PolicySnapshot
from marft.trainer.update_schedules import step_key

BACKTRACK_STEPS = 5  # maximum halvings of a rejected update before it is undone
Optimizers = Mapping[str, PolicyOptimizer]
# target of a scaled change, as a fraction of the budget; one more measurement usually confirms it
TARGET_FRACTION = 0.95


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


def joint_kl(
    samples: Sequence[Sample], old: Mapping[ActionKey, Floats], new: Mapping[ActionKey, Floats], steps: int
) -> float:
    """Return the joint KL for the policies behind ``samples``, in nats per environment step.

    The estimator is k3, summed over all sampled tokens.

    Args:
        samples: samples of the policies.
        old: log-probabilities under π_old, by the action's key.
        new: log-probabilities under the current policies, by the action's key.
        steps: environment steps of the batch, over all changed policies; sums over policies then give the team's KL.
    """
    log_ratios = np.concatenate([new[sample.action.key] - old[sample.action.key] for sample in samples])
    return float(k3_estimate(torch.from_numpy(log_ratios)).sum()) / steps


def environment_steps(samples: Sequence[Sample]) -> int:
    """Count the environment steps behind the samples' actions, over every episode.

    Steps with only frozen agents do not count.
    """
    return len({step_key(sample.action) for sample in samples})


def fit_to_budget(kl: float, budget: float) -> float:
    """Return the fraction to keep for a KL within budget; KL grows with the square.

    >>> round(fit_to_budget(kl=4.0, budget=1.0), 3)
    0.487

    Args:
        kl: KL of the full change.
        budget: maximum KL.
    """
    return math.sqrt(TARGET_FRACTION * budget / kl)


def split_budget(phases: Sequence[UpdatePhase], active_policies: Collection[str], budget: float) -> list[float]:
    """Return the budget of each phase, proportional to its number of changing policies.

    The budgets sum to ``budget``.

    >>> split_budget([UpdatePhase(("planner",)), UpdatePhase(("coder", "idle"))], {"planner", "coder"}, 0.02)
    [0.01, 0.01]

    Args:
        phases: phases of the training step.
        active_policies: policies with samples in the step.
        budget: maximum joint KL of the step.
    """
    changing_counts = [len(set(phase.policies) & set(active_policies)) for phase in phases]
    return [budget * count / max(1, sum(changing_counts)) for count in changing_counts]
