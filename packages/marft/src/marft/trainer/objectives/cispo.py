"""CISPO: clip the importance weight, never the gradient (MiniMax-M1, 2025)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from marft.config.interfaces.objective import LOG_RATIO_LIMIT, LossInputs, LossOutput, Objective
from marft.config.settings import MAX_COUNT


class CISPO(Objective):
    """``−sg(min(r, 1 + high)) A log π``.

    The clip is one-sided with its own width, because PPO's ε would remove most of the signal.
    """

    clip_high: Annotated[float, Field(gt=0, le=MAX_COUNT)] = Field(
        default=4.0, description="maximum weight is 1 + high"
    )

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss and the clip fraction of each unit, shape [U]."""
        ratio = (inputs.log_probs - inputs.old_log_probs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        weight = ratio.clamp(max=1.0 + self.clip_high)
        clipped = (ratio > weight).to(ratio.dtype)
        return LossOutput(-weight * inputs.advantages * inputs.log_probs, {"clip_fraction": clipped})
