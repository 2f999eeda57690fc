"""Team trust region: bound on the joint KL in a training step.

All agents change together under one reward, so the joint policy has to stay close to the old one. By the chain rule the
joint KL is a sum over the actions of an environment step, each given the actions before,

    KL(π_old ‖ π_new) = E_{o, a ∼ π_old} Σ_i KL(π_old^i(· | o, a^{1:i−1}) ‖ π_new^i(· | o, a^{1:i−1})),

and the KL of an action is the sum over its tokens. With a separate bound per agent (a clip, or a KL limit), a team of n
agents can change n times as much. This module bounds the sum. All changes are scaled back by the same fraction, which
preserves their relative sizes.

Sources: bounds on ratios by the number of agents, Sun et al. 2023; one KL constraint on all agents, HATRPO-W and
HATRPO-G, 2025.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from marft.common.types import ActionKey, Sample
from marft.trainer.interfaces import Floats, UpdatePhase
from marft.trainer.scoring import k3
from marft.trainer.team_ratios import step_of

AIM = 0.95  # target of a scaled change, as a fraction of the budget; one more measurement usually confirms it


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
    moved = np.concatenate([new[sample.action.key] - old[sample.action.key] for sample in samples])
    return float(k3(torch.from_numpy(moved)).sum()) / steps


def environment_steps(samples: Sequence[Sample]) -> int:
    """Count the environment steps behind the samples' actions, over every episode.

    Steps with only frozen agents do not count.
    """
    return len({step_of(sample.action) for sample in samples})


def closer(kl: float, budget: float) -> float:
    """Return the fraction to keep for a KL within budget; KL grows with the square.

    >>> round(closer(kl=4.0, budget=1.0), 3)
    0.487

    Args:
        kl: KL of the full change.
        budget: maximum KL.
    """
    return math.sqrt(AIM * budget / kl)


def shares(phases: Sequence[UpdatePhase], acted: Collection[str], budget: float) -> list[float]:
    """Return the budget of each phase, proportional to its number of changing policies.

    The budgets sum to ``budget``.

    >>> shares([UpdatePhase(("planner",)), UpdatePhase(("coder", "idle"))], {"planner", "coder"}, 0.02)
    [0.01, 0.01]

    Args:
        phases: phases of the training step.
        acted: policies with samples in the step.
        budget: maximum joint KL of the step.
    """
    moving = [len(set(phase.policies) & set(acted)) for phase in phases]
    return [budget * count / max(1, sum(moving)) for count in moving]
