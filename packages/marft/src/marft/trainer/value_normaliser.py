"""Values in units of their own targets, as MAPPO learns them (Yu et al. 2022): running mean and deviation."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from marft.trainer.interfaces import Floats

LEAST_VARIANCE = 1e-2  # as in Yu et al.'s code


class ValueNormaliser(nn.Module):
    """A head says ``(V − mean) / std``. The statistics are exponential means of the targets and their squares, with the
    bias of their start taken out, so that the first batch counts whole. Before it V is what the head says.

    They are parameters without gradient, in float64: they travel with the head into checkpoints and back, bit for bit.

    Args:
        decay: how much of the old statistics a batch keeps.

    >>> normaliser = ValueNormaliser(decay=0.9)
    >>> normaliser.update(np.array([9.0, 11.0]))
    >>> normaliser.normalise(np.array([12.0])).tolist(), normaliser.denormalise(np.array([2.0])).tolist()
    ([2.0], [12.0])
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.sums = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)  # of x, of x², of weights

    def update(self, targets: Floats) -> None:
        """Take in a batch of targets."""
        if not len(targets):
            return
        new = torch.tensor([targets.mean(), np.square(targets).mean(), 1.0], dtype=torch.float64)
        self.sums.mul_(self.decay).add_(new.to(self.sums.device), alpha=1.0 - self.decay)

    def normalise(self, values: Floats) -> Floats:
        mean, std = self._moments()
        return (values - mean) / std

    def denormalise(self, values: Floats) -> Floats:
        mean, std = self._moments()
        return values * std + mean

    def _moments(self) -> tuple[float, float]:
        total, squares, weight = self.sums.tolist()
        if not weight:
            return 0.0, 1.0
        mean = total / weight
        return mean, max(squares / weight - mean**2, LEAST_VARIANCE) ** 0.5
