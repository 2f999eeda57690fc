"""What a model does to its logits after the head's product: a scale, a soft cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitShape:
    """``x → cap · tanh(scale · x / cap)``; without a cap ``scale · x``."""

    scale: float = 1.0
    cap: float | None = None

    @staticmethod
    def of(config: Any) -> LogitShape:
        """As a model's configuration names it: Granite divides, Cohere multiplies, Gemma caps."""
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        return LogitShape(scale, getattr(config, "final_logit_softcapping", None))

    @property
    def plain(self) -> bool:
        return self.scale == 1.0 and self.cap is None

    def __call__(self, products: Tensor) -> Tensor:
        """From the head's products to logits."""
        if self.plain:
            return products
        scaled = products * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: Tensor) -> Tensor | float:
        """The derivative of logits by the head's products, given the logits."""
        return self.scale if self.cap is None else (1 - (logits / self.cap).square()) * self.scale


AS_THEY_ARE = LogitShape()
