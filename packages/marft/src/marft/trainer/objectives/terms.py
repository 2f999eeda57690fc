"""Additional loss terms: KL to the untuned base, and the sampler correction.

All functions are pure and take one row per token (formulas §6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marft.config.algorithm import KLSettings, SamplerCorrectionSettings
from marft.trainer.interfaces import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor


def kl_terms(settings: KLSettings, log_probs: Tensor, base: Tensor, old: Tensor) -> Tensor:
    """Return an estimate of KL(π ‖ base) at each sampled token, shape [T], in nats.

    The expected gradient of ``k2`` is the gradient of the KL on-policy. ``k3-corrected`` is weighted with the new/old
    ratio; its expected gradient is correct off-policy too. The gradient of ``k3`` is that of KL(base ‖ π).

    Args:
        settings: settings of the KL term.
        log_probs: current log-probabilities, shape [T], with gradient.
        base: log-probabilities under the untuned base, shape [T].
        old: log-probabilities before the step, shape [T].
    """
    d = (base - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if settings.estimator == "k2":
        return 0.5 * d.square()
    k3 = d.expm1() - d
    if settings.estimator == "k3-corrected":
        return (log_probs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() * k3
    return k3


def sampler_weights(settings: SamplerCorrectionSettings, old: Tensor, engine: Tensor, action_of: Tensor) -> Tensor:
    """Return the weight ``min(π_old/μ, cap)`` per token, shape [T].

    The ratio belongs to the token, or is the product or the geometric mean over its action. Masked tokens have weight
    0.

    Args:
        settings: settings of the sampler correction.
        old: the learner's log-probabilities before the step, shape [T].
        engine: the engine's log-probabilities at sampling, shape [T].
        action_of: index of each token's action, shape [T].
    """
    log_ratio = old - engine
    if settings.level != "token":
        empty = log_ratio.new_zeros(len(log_ratio))  # one entry per action; never more actions than tokens
        sums = empty.index_add(0, action_of, log_ratio)
        if settings.level == "geometric":
            sums = sums / empty.index_add(0, action_of, log_ratio.new_ones(len(log_ratio)))
        log_ratio = sums[action_of]
    weights = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if settings.mask_high:
        weights = weights * ((weights >= settings.mask_low) & (weights <= settings.mask_high))
    return weights.clamp(max=settings.cap)
