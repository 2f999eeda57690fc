"""DPPO: a trust region by divergence instead of by ratio (Qi et al. 2026).

The ratio of a rare token changes much when its probability changes little, and that of a frequent token changes little
when its probability changes much. PPO's clip therefore holds back rare tokens and lets frequent ones go far. DPPO drops
a token's gradient if the distribution has moved further than δ and the advantage pushes it further.

μ is the policy that sampled, with the engine's log-probabilities. The divergence is that of two outcomes, the sampled
token and all others, which needs no other logits. The paper also has a form with the k most probable tokens; MARFT has
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.interfaces.objective import LOG_RATIO_LIMIT, LossInputs, LossOutput, Objective

if TYPE_CHECKING:
    from torch import Tensor

Delta = Annotated[float, Field(gt=0, le=1000)]
DEFAULT_DELTAS = {"tv": 0.2, "kl": 0.05}


class DPPO(Objective):
    """``−M r A`` with ``r = π/μ``; M = 0 where ``D(μ, π) > δ`` and the update would increase D, else 1.

    ``tv`` is ``|π(y) − μ(y)|``, ``kl`` is ``KL(μ ‖ π)`` of the two outcomes.
    """

    anchors_on_sampler: ClassVar[bool] = True

    divergence: Literal["tv", "kl"] = Field(
        default="tv", description="total variation, or KL, of the sampled token against all others"
    )
    delta: Delta | None = Field(default=None, description="maximum divergence; default: 0.2 for tv, 0.05 for kl")
    delta_high: Delta | None = Field(
        default=None, description="maximum divergence for advantages above 0; default: delta"
    )

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss and the fraction of dropped gradients of each unit, shape [U]."""
        log_ratio = inputs.log_probs - inputs.sampler_log_probs
        ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        low = self.delta or DEFAULT_DELTAS[self.divergence]
        limit = (inputs.advantages > 0) * ((self.delta_high or low) - low) + low
        moves_away = inputs.advantages * log_ratio.detach() > 0
        divergence = self._divergence(inputs.log_probs.detach(), inputs.sampler_log_probs)
        dropped = moves_away & (divergence > limit)
        terms = (-ratio * inputs.advantages).masked_fill(dropped, 0.0)
        return LossOutput(terms, {"clip_fraction": dropped.to(ratio.dtype)})

    def _divergence(self, log_p: Tensor, log_mu: Tensor) -> Tensor:
        """Return the divergence between the two distributions over two outcomes, shape [U]."""
        p, mu = log_p.exp(), log_mu.exp()
        if self.divergence == "tv":
            return (p - mu).abs()
        tiny = 1e-12  # of a probability of the other tokens, which rounding may make 0 or negative
        rest_p, rest_mu = (1 - p).clamp(min=tiny), (1 - mu).clamp(min=tiny)
        return mu * (log_mu - log_p) + rest_mu * (rest_mu.log() - rest_p.log())
