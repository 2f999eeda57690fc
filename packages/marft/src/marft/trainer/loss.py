"""Loss of a micro-batch beside the objective's terms: their weights, KL to the base, entropy, and further terms.

:func:`k3_estimate`, :func:`kl_terms` and :func:`sampler_weights` are pure and take one row per token (formulas §6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marft.config.algorithm import AlgorithmSettings, KLSettings, SamplerCorrectionSettings, TeammateTextSettings
from marft.config.interfaces.objective import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

    from marft.models.log_probs import TokenScores
    from marft.trainer.micro_batch import MicroBatch, TeammateText


def k3_estimate(log_ratio: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(p ‖ q) at samples from p, in nats.

    Args:
        log_ratio: ``log q − log p``; clamped to ±20 nats.
    """
    d = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return d.expm1() - d


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
    if settings.estimator == "k2":
        return 0.5 * (base - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).square()
    k3 = k3_estimate(base - log_probs)
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


def correct_sampler(settings: SamplerCorrectionSettings, batch: MicroBatch, old: Tensor) -> Tensor | None:
    """Return the :func:`sampler_weights` of a micro-batch, shape [T]; None without a correction."""
    if settings.level == "none":
        return None
    return sampler_weights(settings, old, batch.engine_log_probs, batch.action_of)


def weigh_units(batch: MicroBatch, correction: Tensor | None) -> Tensor:
    """Return the weights of the objective's terms, shape [U], including the sampler correction."""
    return batch.unit_weights if correction is None else batch.unit_weights * batch.per_unit(correction)


def extra_losses(settings: AlgorithmSettings, batch: MicroBatch, scores: TokenScores, old: Tensor) -> Tensor:
    """Return the extra loss terms: entropy bonus, KL to the base, likelihood in successful episodes."""
    extra = scores.log_probs.new_zeros(())
    if settings.entropy_coefficient:
        extra = extra - settings.entropy_coefficient * (scores.entropies * batch.token_weights).sum()
    kl = settings.kl
    if kl.coefficient and kl.apply_to == "loss":
        assert batch.base_log_probs is not None
        terms = kl_terms(kl, scores.log_probs, batch.base_log_probs, old)
        extra = extra + kl.coefficient * (terms * batch.token_weights).sum()
    if settings.nll_coefficient:
        extra = extra - settings.nll_coefficient * (scores.log_probs * batch.nll_weights).sum()
    return extra


def teammate_loss(settings: TeammateTextSettings, text: TeammateText, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return −c · w · A · log π, summed over teammate text in the agents' turns, and the weights w, shape [M]."""
    weights = settings.weight.compute_weights(log_probs.detach(), text.author_log_probs, text.advantages)
    return -settings.coefficient * (weights * text.advantages * log_probs * text.weights).sum(), weights
