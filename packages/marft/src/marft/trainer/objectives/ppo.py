"""PPO: clipped surrogate (Schulman et al. 2017) with an optional dual clip (Ye et al. 2020)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.config.interfaces.objective import LOG_RATIO_LIMIT, LossInputs, LossOutput, Objective


class PPO(Objective):
    """``−min(r A, clip(r, 1 − clip, 1 + clip_high) A)``; for A < 0 the surrogate is at least ``dual_clip · A``.

    At action level with ``normalization = "tokens"`` the ratio is GSPO's sequence ratio.
    """

    clip: Annotated[float, Field(ge=1e-6, lt=1)] = Field(
        default=0.2, description="lower clip width: ratios below 1 − clip are clipped"
    )
    clip_high: Annotated[float, Field(ge=1e-6, le=1e9)] | None = Field(
        default=None, description="upper clip width (DAPO's clip-higher); default: clip"
    )
    dual_clip: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0, description="lower bound of the surrogate for A < 0, as a multiple of A above 1; 0: off"
    )

    @field_validator("dual_clip")
    @classmethod
    def _check_dual_clip(cls, dual_clip: float) -> float:
        if 0 < dual_clip <= 1:
            raise PydanticCustomError("dual_clip", "must be above 1, else no bad action is unlearned; 0 is off")
        return dual_clip

    @property
    def clip_width(self) -> float:
        """Lower clip width, as configured."""
        return self.clip

    def with_clip_scale(self, scale: float) -> Self:
        """Return a copy with both clip widths multiplied by ``scale``."""
        return self.model_copy(
            update={"clip": self.clip * scale, "clip_high": self.clip_high and self.clip_high * scale}
        )

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss and the clip fraction of each unit, shape [U]."""
        advantages = inputs.advantages
        log_ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = log_ratio.exp()
        low, high = 1.0 - self.clip, 1.0 + (self.clip_high or self.clip)
        unclipped, clipped = ratio * advantages, ratio.clamp(low, high) * advantages
        surrogate = unclipped.minimum(clipped)
        is_clipped = clipped < unclipped
        if self.dual_clip:
            floor = self.dual_clip * advantages
            too_low = (advantages < 0) & (surrogate < floor)
            surrogate = floor.where(too_low, surrogate)
            is_clipped = is_clipped | too_low
        return LossOutput(-surrogate, {"clip_fraction": is_clipped.to(ratio.dtype)})
