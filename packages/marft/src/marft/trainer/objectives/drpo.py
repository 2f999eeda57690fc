"""DRPO: DPPO's trust region as a smooth penalty (Yao et al. 2026)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from marft.config.interfaces.objective import LOG_RATIO_LIMIT, LossInputs, LossOutput, Objective


class DRPO(Objective):
    """``−r A + |A| μ (r − 1)² / (2 δ)`` with ``r = π/μ``, and μ the policy that sampled.

    Its gradient is the policy gradient times ``1 − sign(A (r − 1)) |π − μ| / δ``. The update slows down as the
    probability moves away from μ, stops at a distance of δ, and turns back beyond.
    """

    anchors_on_sampler: ClassVar[bool] = True

    delta: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=12.5, description="distance in probability at which the gradient vanishes; above 1 it only slows down"
    )

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of each unit, and the fraction of units beyond δ, shape [U]."""
        log_ratio = (inputs.log_probs - inputs.sampler_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio, mu = log_ratio.exp(), inputs.sampler_log_probs.exp()
        penalty = inputs.advantages.abs() * mu * (ratio - 1).square() / (2 * self.delta)
        beyond = (mu * (ratio.detach() - 1).abs() > self.delta).to(ratio.dtype)
        return LossOutput(penalty - ratio * inputs.advantages, {"clip_fraction": beyond})
