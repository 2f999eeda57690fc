"""Value head V_φ: an MLP on the hidden states of the frozen base model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marft.models.load_lock import with_load_lock


class ValueHead(nn.Module):
    """Value head: features [K, D] → values [K], with two hidden layers, in float32.

    The feature dimensions of a base model differ in scale by orders of magnitude, so each row is normalized first. The
    last layer is initialized to zero: an untrained critic predicts 0, not noise.
    """

    @with_load_lock
    def __init__(self, features: int, hidden: int, seed: int) -> None:
        super().__init__()
        self.normalize = nn.LayerNorm(features, elementwise_affine=False)
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )
        generator = torch.Generator().manual_seed(seed)
        for module in self.layers:
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5, generator=generator)
                nn.init.zeros_(module.bias)
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)

    def forward(self, features_KD: Tensor) -> Tensor:
        """Return the values, [K], for features [K, D]."""
        values: Tensor = self.layers(self.normalize(features_KD.float()))[:, 0]
        return values
