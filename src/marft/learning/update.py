"""Policy updates of one training step: phases, epochs, global minibatches, the KL stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from marft.config.algorithm import AlgorithmSettings
from marft.learning.batching import Denominators, KnownLogProbs, MicroBatch, Packing, minibatches
from marft.learning.interfaces import LossInputs, Objective, UpdatePhase
from marft.learning.measuring import (
    k3,
    measure_difference,
    measure_gradient_share,
    measure_tokens,
    measure_units,
    score_actions,
    score_all,
)
from marft.learning.metering import Meter
from marft.learning.objectives.terms import kl_terms, sampler_weights, teammate_terms
from marft.learning.optimizers import PolicyOptimizer
from marft.learning.teammate_text import TeammateText
from marft.models.log_probs import TokenScores
from marft.types import Sample

BACKTRACKS = 5  # halvings of an update that moved too far, before it is undone


class Update:
    """Moves policies, one phase at a time.

    Args:
        known: log-probs that were scored before the step.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        objective: Objective,
        optimizers: Mapping[str, PolicyOptimizer],
        packing: Packing,
        known: KnownLogProbs,
        meter: Meter,
        seed: int,
    ) -> None:
        self.settings, self.objective, self.optimizers, self.packing = settings, objective, optimizers, packing
        self.known, self.meter, self.seed = known, meter, seed
        self.moved: set[str] = set()  # policies that have stepped since the episodes were sampled

    def run(self, phase: UpdatePhase, samples: Sequence[Sample], step: int) -> None:
        """Epochs of minibatches over the phase's policies, until the KL stop ends the phase."""
        mine = [sample for sample in samples if sample.action.policy in phase.policies]
        self.meter.add("idle_phases", float(not mine))
        if not mine:
            return
        before = {name: self.optimizers[name].snapshot() for name in phase.policies} if phase.kl_limit else {}
        objective = _scaled(self.objective, phase.clip_scale)
        self._epochs(mine, objective, step)
        if phase.kl_limit:
            self._accept(mine, before, phase.kl_limit)

    def _epochs(self, samples: Sequence[Sample], objective: Objective, step: int) -> None:
        for epoch in range(self.settings.epochs):
            for part in minibatches(samples, self.settings.minibatches, self.seed, step, epoch):
                if not self._minibatch(part, objective):
                    self.meter.add("kl_stops", 1.0)
                    return

    def _accept(self, samples: Sequence[Sample], before: Mapping[str, Sequence[Tensor]], limit: float) -> None:
        """Scale a phase's change back until its KL is within ``limit``, else undo it (HATRPO's line search)."""
        after = {name: self.optimizers[name].snapshot() for name in before}
        fraction = 1.0
        for _ in range(BACKTRACKS + 1):
            if self._moved_by(samples) <= limit:
                break
            fraction /= 2
            self._place(before, after, fraction)
        else:
            fraction = 0.0
            self._place(before, after, fraction)
        self.meter.add("accepted_fraction", fraction)
        self.meter.add("rollbacks", float(fraction == 0.0))

    @torch.no_grad()
    def _place(
        self, before: Mapping[str, Sequence[Tensor]], after: Mapping[str, Sequence[Tensor]], fraction: float
    ) -> None:
        for name, start in before.items():
            parameters = self.optimizers[name].parameters.values()
            for parameter, a, b in zip(parameters, start, after[name], strict=True):
                parameter.copy_(torch.lerp(a, b, fraction) if fraction else a)

    def _moved_by(self, samples: Sequence[Sample]) -> float:
        """KL (k3, mean over sampled tokens) of the policies now from those that the step began with."""
        now = score_actions(self.packing, samples)
        total, count = 0.0, 0
        for sample in samples:
            old = self.known.old.get(id(sample.action), sample.action.log_probs)
            difference = torch.from_numpy(now[id(sample.action)] - old)
            total, count = total + float(k3(difference).sum()), count + len(difference)
        return total / count

    def _minibatch(self, samples: Sequence[Sample], objective: Objective) -> bool:
        """One global minibatch: accumulate its gradient over micro-batches, then step its policies.

        False when the KL is above the limit; then no optimizer has stepped. The KL is that of the whole minibatch
        and is known before the step; with one micro-batch it is known before the backward pass, which is skipped.
        """
        policies = sorted({sample.action.policy for sample in samples})
        denominators = Denominators.of(samples, self.settings.denominator == "pooled")
        batches = self.packing.micro_batches(samples, denominators, self.known)
        for policy in policies:
            self.optimizers[policy].zero_grad()
        kl_sum = tokens = loss = 0.0
        for batch in batches:
            scores, teammate_log_probs = score_all(batch, entropy_gradient=self.settings.entropy > 0)
            kl = k3(scores.log_probs.detach() - batch.old_log_probs)
            self._observe(batch, scores, kl)
            kl_sum, tokens = kl_sum + kl.sum().item(), tokens + len(kl)
            if len(batches) == 1 and self._over_limit(kl_sum / tokens):
                return False
            loss += self._backward(batch, scores, teammate_log_probs, objective)
        if self._over_limit(kl_sum / tokens):
            return False
        self.meter.add("policy_loss", loss)
        for policy in policies:
            self._step(policy)
        return True

    def _over_limit(self, kl: float) -> bool:
        return self.settings.kl_stop > 0 and not kl <= self.settings.kl_stop

    def _observe(self, batch: MicroBatch, scores: TokenScores, kl: Tensor) -> None:
        measure_tokens(self.meter, batch, entropy=scores.entropies, kl=kl)
        if not self.moved & {sample.action.policy for sample in batch.samples}:
            measure_difference(self.meter, batch, scores.log_probs.detach())

    def _backward(
        self, batch: MicroBatch, scores: TokenScores, teammate_log_probs: Tensor | None, objective: Objective
    ) -> float:
        gradient: list[Tensor] = []
        scores.log_probs.register_hook(gradient.append)
        old = batch.units(batch.old_log_probs) - batch.log_factors
        output = objective(LossInputs(batch.units(scores.log_probs), old, batch.advantages))
        loss = (output.terms * self._unit_weights(batch)).sum() + self._extras(batch, scores)
        if batch.teammate_text is not None and teammate_log_probs is not None:
            loss = loss + self._teammate_loss(batch.teammate_text, teammate_log_probs)
        loss.backward()
        measure_units(self.meter, batch, **output.metrics)
        measure_gradient_share(self.meter, batch, gradient[0])
        return loss.item()

    def _unit_weights(self, batch: MicroBatch) -> Tensor:
        """Weights of the objective's terms, with the sampler's correction."""
        correction = self.settings.sampler_correction
        if correction.level == "none":
            return batch.unit_weights
        weights = sampler_weights(correction, batch.old_log_probs, batch.engine_log_probs, batch.action_of)
        measure_tokens(self.meter, batch, sampler_weight=weights)
        if batch.level == "action":
            weights = weights[batch.first_tokens()]
        return batch.unit_weights * weights

    def _extras(self, batch: MicroBatch, scores: TokenScores) -> Tensor:
        """Entropy bonus, KL to the base, likelihood of successful actions: each a sum over tokens."""
        extra = scores.log_probs.new_zeros(())
        if self.settings.entropy:
            extra = extra - self.settings.entropy * (scores.entropies * batch.token_weights).sum()
        kl = self.settings.kl
        if kl.coefficient and kl.place == "loss":
            assert batch.base_log_probs is not None
            terms = kl_terms(kl, scores.log_probs, batch.base_log_probs, batch.old_log_probs)
            extra = extra + kl.coefficient * (terms * batch.token_weights).sum()
        if self.settings.nll:
            extra = extra - self.settings.nll * (scores.log_probs * batch.nll_weights).sum()
        return extra

    def _teammate_loss(self, text: TeammateText, log_probs: Tensor) -> Tensor:
        settings = self.settings.teammate_text
        terms = teammate_terms(settings, log_probs, text.author_log_probs, text.advantages)
        return settings.coefficient * (terms * text.weights).sum()

    def _step(self, policy: str) -> None:
        norm = self.optimizers[policy].step()
        self.moved.add(policy)
        for scope in ("", f"policies/{policy}/"):
            self.meter.add(f"{scope}gradient_norm", norm)
            self.meter.add(f"{scope}skipped_updates", float(not math.isfinite(norm)))


def _scaled(objective: Objective, scale: float) -> Objective:
    """The objective with its clip ``scale`` as wide."""
    if scale == 1.0:
        return objective
    update = {name: width * scale for name in ("clip", "clip_high") if (width := getattr(objective, name, None))}
    copied: Objective = objective.model_copy(update=update)  # type: ignore[attr-defined]
    return copied
