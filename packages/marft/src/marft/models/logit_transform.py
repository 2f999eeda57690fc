"""Logit transform applied by a model after its LM head: scale and soft cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Logit transform ``x → softcap · tanh(scale · x / softcap)``; without a soft cap ``scale · x``."""

    scale: float = 1.0
    softcap: float | None = None

    @staticmethod
    def from_config(config: Any) -> LogitTransform:
        """Read the transform from a model's configuration: Granite divides, Cohere multiplies, Gemma caps."""
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))

    @property
    def is_identity(self) -> bool:
        """True for the identity transform."""
        return self.scale == 1.0 and self.softcap is None

    def __call__(self, head_outputs: Tensor) -> Tensor:
        """Convert head products to logits."""
        if self.is_identity:
            return head_outputs
        scaled = head_outputs * self.scale
        return scaled if self.softcap is None else (scaled / self.softcap).tanh() * self.softcap

    def gradient(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of the logits with respect to the head products, given the logits."""
        return self.scale if self.softcap is None else (1 - (logits / self.softcap).square()) * self.scale


IDENTITY = LogitTransform()
