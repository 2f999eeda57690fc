"""CISPO (MiniMax-M1, 2025): the importance weight is clipped, never the gradient."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marft.config.parts import ObjectivePart
from marft.config.settings import LARGEST
from marft.trainer.interfaces import LOG_RATIO_LIMIT, LossInputs, LossOutput


class CISPO(ObjectivePart):
    """``−sg(min(r, 1 + high)) A log π``. One-sided, with a width of its own: PPO's ε would cut most of the signal."""

    high: Annotated[float, Field(gt=0, le=LARGEST)] = 4.0  # the weight is at most 1 + high

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio = (inputs.log_probs - inputs.old_log_probs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        weight = ratio.clamp(max=1.0 + self.high)
        clipped = (ratio > weight).to(ratio.dtype)
        return LossOutput(-weight * inputs.advantages * inputs.log_probs, {"clip_fraction": clipped})
