"""What a loss may have beside its objective: KL to the untuned base, and the correction of the sampler's numbers.
Pure functions of one row a token (formulas §6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marft.config.algorithm import KLSettings, SamplerCorrectionSettings
from marft.trainer.interfaces import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor


def kl_terms(settings: KLSettings, log_probs: Tensor, base: Tensor, old: Tensor) -> Tensor:
    """An estimate of KL(π ‖ base) at each sampled token, [T].

    The expected gradient of ``k2`` is the KL's on-policy, that of ``k3-corrected``, weighed with the new/old ratio,
    off-policy too. That of ``k3`` is the gradient of KL(base ‖ π).
    """
    d = (base - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if settings.estimator == "k2":
        return 0.5 * d.square()
    k3 = d.expm1() - d
    if settings.estimator == "k3-corrected":
        return (log_probs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() * k3
    return k3


def sampler_weights(settings: SamplerCorrectionSettings, old: Tensor, engine: Tensor, action_of: Tensor) -> Tensor:
    """``min(π_old/μ, cap)`` for each token, [T]: its own, or its action's product or geometric mean; 0 where masked.

    Args:
        old: the learner's log-probs from before the step, [T].
        engine: those that the tokens were sampled with, [T].
        action_of: the action of each token, [T].
    """
    difference = old - engine
    if settings.level != "token":
        empty = difference.new_zeros(len(difference))  # of actions, of which there are no more than tokens
        sums = empty.index_add(0, action_of, difference)
        if settings.level == "geometric":
            sums = sums / empty.index_add(0, action_of, difference.new_ones(len(difference)))
        difference = sums[action_of]
    weights = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if settings.high:
        weights = weights * ((weights >= settings.low) & (weights <= settings.high))
    return weights.clamp(max=settings.cap)
