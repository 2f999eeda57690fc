"""Learner state: the data for checkpoints and for the non-finite guard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from marft.models.dtensors import local_shard
from marft.runs.checkpoints import TrainState
from marft.trainer.critic import Critic
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors

CRITIC = "critic"


class LearnerState(TrainState, Protocol):
    """Learner state: policy optimizers and the critic, for reward training or imitation."""

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """Optimizer of each trained policy, by name."""

    @property
    def critic(self) -> Critic | None:
        """Critic; None without a critic."""


def find_non_finite(learner: LearnerState) -> list[str]:
    """Return the parts with a non-finite number: ``policies.<name>`` or ``critic``.

    The cost is one pass over all parameters and moments, and one number per policy transferred from the device.
    """
    return [
        name for name, parameters, optimizer in iterate_trained_parts(learner) if not _is_finite(parameters, optimizer)
    ]


def iterate_trained_parts(
    learner: LearnerState,
) -> Iterator[tuple[str, dict[str, nn.Parameter], torch.optim.Optimizer]]:
    """Yield name, parameters and optimizer for each trained part."""
    for name, optimizer in learner.optimizers.items():
        yield f"policies.{name}", optimizer.parameters, optimizer.optimizer
    if learner.critic:
        yield CRITIC, learner.critic.parameters(), learner.critic.optimizer


@torch.no_grad()
def _is_finite(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> bool:
    moments = optimizer_tensors(optimizer, parameters).values()
    local_tensors = map(local_shard, (*parameters.values(), *moments))
    tensors = [tensor for tensor in local_tensors if tensor.numel()]
    return bool(torch.isfinite(get_total_norm(tensors, norm_type=float("inf"), foreach=True)))
