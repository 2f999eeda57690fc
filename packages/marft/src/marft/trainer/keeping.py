"""State of a learner: all that a checkpoint holds, and that a step that went wrong puts back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from marft.models.parts import local
from marft.runs.checkpoints import TrainState
from marft.trainer.critic import Critic
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors

CRITIC = "critic"


class Kept(TrainState, Protocol):
    """A learner by rewards, or one by imitation."""

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """Of the trained policies, by name."""

    @property
    def critic(self) -> Critic | None:
        """What judges, where anything does."""


def not_finite(learner: Kept) -> list[str]:
    """Return the parts that hold a number that is not finite: ``policies.<name>`` or ``critic``.

    Costs one look at every parameter and moment, and one number a policy back from the device.
    """
    return [name for name, parameters, optimizer in learning_parts(learner) if not _finite(parameters, optimizer)]


def learning_parts(learner: Kept) -> Iterator[tuple[str, dict[str, nn.Parameter], torch.optim.Optimizer]]:
    """Yield the name, the parameters and the optimizer of each part that learns."""
    for name, optimizer in learner.optimizers.items():
        yield f"policies.{name}", optimizer.parameters, optimizer.optimizer
    if learner.critic:
        yield CRITIC, learner.critic.parameters(), learner.critic.optimizer


@torch.no_grad()
def _finite(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> bool:
    moments = optimizer_tensors(optimizer, parameters).values()
    held = map(local, (*parameters.values(), *moments))
    tensors = [tensor for tensor in held if tensor.numel()]
    return bool(torch.isfinite(get_total_norm(tensors, norm_type=float("inf"), foreach=True)))
