"""Logit transform applied by a model after its LM head: scale and soft cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitShape:
    """Logit transform ``x → cap · tanh(scale · x / cap)``; without a cap ``scale · x``."""

    scale: float = 1.0
    cap: float | None = None

    @staticmethod
    def of(config: Any) -> LogitShape:
        """Read the transform from a model's configuration: Granite divides, Cohere multiplies, Gemma caps."""
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        return LogitShape(scale, getattr(config, "final_logit_softcapping", None))

    @property
    def plain(self) -> bool:
        """True for the identity transform."""
        return self.scale == 1.0 and self.cap is None

    def __call__(self, products: Tensor) -> Tensor:
        """Convert head products to logits."""
        if self.plain:
            return products
        scaled = products * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of the logits with respect to the head products, given the logits."""
        return self.scale if self.cap is None else (1 - (logits / self.cap).square()) * self.scale


AS_THEY_ARE = LogitShape()
