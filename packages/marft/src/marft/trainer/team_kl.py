"""The trust region of a team: how far all its policies together may move in a training step.

Every agent moves at once under one reward, so what has to stay close is the joint policy. By the chain rule its KL is
the sum over the actions of an environment step, each given the actions before it,

    KL(π_old ‖ π_new) = E_{o, a ∼ π_old} Σ_i KL(π_old^i(· | o, a^{1:i−1}) ‖ π_new^i(· | o, a^{1:i−1})),

and an action's is the sum over its tokens. With a bound for each agent (a clip, a KL limit of its own) a team of n
moves n times as far; this bounds the sum. All are scaled back by the same fraction, so that those that moved share the
budget as they shared the move. (Bounds on ratios by the number of agents: Sun et al. 2023. One KL constraint on all
agents: HATRPO-W and HATRPO-G, 2025.)
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

AIM = 0.95  # of the budget: what a scaled change aims at, so that one measurement more usually finds it within


def joint_kl(
    samples: Sequence[Sample], old: Mapping[ActionKey, Floats], new: Mapping[ActionKey, Floats], steps: int
) -> float:
    """How far the policies of ``samples`` have moved, in nats an environment step: k3 over all sampled tokens.

    Args:
        old: π_old's log-probs, which the tokens were sampled with, by the action's key.
        new: those of the policies now.
        steps: environment steps of the batch, whoever of those that move acted: sums over policies are the team's.
    """
    moved = np.concatenate([new[sample.action.key] - old[sample.action.key] for sample in samples])
    return float(k3(torch.from_numpy(moved)).sum()) / steps


def environment_steps(samples: Sequence[Sample]) -> int:
    """In how many environment steps, over all episodes, the samples' actions were taken. Steps in which frozen agents
    alone act are none."""
    return len({step_of(sample.action) for sample in samples})


def closer(kl: float, budget: float) -> float:
    """The fraction of a change that moved by ``kl`` which moves by less than ``budget``: KL grows with its square.

    >>> round(closer(kl=4.0, budget=1.0), 3)
    0.487
    """
    return math.sqrt(AIM * budget / kl)


def shares(phases: Sequence[UpdatePhase], acted: Collection[str], budget: float) -> list[float]:
    """What of a step's budget each phase has: as much as its policies are of all that move, so that the sum over
    phases is the budget.

    >>> shares([UpdatePhase(("planner",)), UpdatePhase(("coder", "idle"))], {"planner", "coder"}, 0.02)
    [0.01, 0.01]
    """
    moving = [len(set(phase.policies) & set(acted)) for phase in phases]
    return [budget * count / max(1, sum(moving)) for count in moving]
