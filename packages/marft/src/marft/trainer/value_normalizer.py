"""Value normalization by running mean and standard deviation of the targets (MAPPO: Yu et al. 2022)."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from marft.trainer.interfaces import Floats

MIN_VARIANCE = 1e-2  # minimum variance, as in Yu et al.'s code


class ValueNormalizer(nn.Module):
    """Normalizer for value heads: a head predicts ``(V − mean) / std``.

    The statistics are exponential means of the targets and their squares. They are bias-corrected, so the first batch
    counts in full. Before the first batch, V equals the output of the head.

    The statistics are float64 parameters without gradient. They are saved in checkpoints with the head, bit for bit.

    Args:
        decay: weight of the old statistics per batch.

    >>> normaliser = ValueNormalizer(decay=0.9)
    >>> normaliser.update(np.array([9.0, 11.0]))
    >>> normaliser.normalize(np.array([12.0])).tolist(), normaliser.denormalize(np.array([2.0])).tolist()
    ([2.0], [12.0])
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.sums = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)  # sums of x, x², weights

    def update(self, targets: Floats) -> None:
        """Update the statistics with a batch of targets, shape [N]."""
        if not len(targets):
            return
        new = torch.tensor([targets.mean(), np.square(targets).mean(), 1.0], dtype=torch.float64)
        self.sums.mul_(self.decay).add_(new.to(self.sums.device), alpha=1.0 - self.decay)

    def normalize(self, values: Floats) -> Floats:
        """Return values in normalized units."""
        mean, std = self._moments()
        return (values - mean) / std

    def denormalize(self, values: Floats) -> Floats:
        """Return values in units of the targets."""
        mean, std = self._moments()
        return values * std + mean

    def _moments(self) -> tuple[float, float]:
        total, squares, weight = self.sums.tolist()
        if not weight:
            return 0.0, 1.0
        mean = total / weight
        return mean, max(squares / weight - mean**2, MIN_VARIANCE) ** 0.5
