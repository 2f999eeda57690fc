"""Policy updates of one training step: phases, epochs, global minibatches, the KL stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from marft.config.algorithm import AlgorithmSettings
from marft.learning.batching import Denominators, MicroBatch, Packing, minibatches
from marft.learning.interfaces import Floats, LossInputs, Objective, UpdatePhase
from marft.learning.measuring import (
    k3,
    measure_difference,
    measure_gradient_share,
    measure_tokens,
    measure_units,
    score,
)
from marft.learning.metering import Meter
from marft.learning.optimizers import PolicyOptimizer
from marft.models.log_probs import TokenScores
from marft.types import Sample


class Update:
    """Moves policies, one phase at a time.

    Args:
        old_log_probs: by ``id`` of an action, where the learner scored it before the step; else the engine's count.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        objective: Objective,
        optimizers: Mapping[str, PolicyOptimizer],
        packing: Packing,
        old_log_probs: Mapping[int, Floats],
        meter: Meter,
        seed: int,
    ) -> None:
        self.settings, self.objective, self.optimizers, self.packing = settings, objective, optimizers, packing
        self.old_log_probs, self.meter, self.seed = old_log_probs, meter, seed
        self.moved: set[str] = set()  # policies that have stepped since the episodes were sampled

    def run(self, phase: UpdatePhase, samples: Sequence[Sample], step: int) -> None:
        """Epochs of minibatches over the phase's policies, until the KL stop ends the phase."""
        mine = [sample for sample in samples if sample.action.policy in phase.policies]
        for epoch in range(self.settings.epochs):
            for part in minibatches(mine, self.settings.minibatches, self.seed, step, epoch):
                if not self._minibatch(part):
                    self.meter.add("kl_stops", 1.0)
                    return

    def _minibatch(self, samples: Sequence[Sample]) -> bool:
        """One global minibatch: accumulate its gradient over micro-batches, then step its policies.

        False when the KL is above the limit; then no optimizer has stepped. The KL is that of the whole minibatch
        and is known before the step; with one micro-batch it is known before the backward pass, which is skipped.
        """
        policies = sorted({sample.action.policy for sample in samples})
        denominators = Denominators.of(samples, self.settings.denominator == "pooled")
        batches = self.packing.micro_batches(samples, denominators, self.old_log_probs)
        for policy in policies:
            self.optimizers[policy].zero_grad()
        kl_sum = tokens = loss = 0.0
        for batch in batches:
            scores = score(batch, entropy_gradient=self.settings.entropy > 0)
            kl = k3(scores.log_probs.detach() - batch.old_log_probs)
            self._observe(batch, scores, kl)
            kl_sum, tokens = kl_sum + kl.sum().item(), tokens + len(kl)
            if len(batches) == 1 and self._over_limit(kl_sum / tokens):
                return False
            loss += self._backward(batch, scores)
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

    def _backward(self, batch: MicroBatch, scores: TokenScores) -> float:
        gradient: list[Tensor] = []
        scores.log_probs.register_hook(gradient.append)
        inputs = LossInputs(batch.units(scores.log_probs), batch.units(batch.old_log_probs), batch.advantages)
        output = self.objective(inputs)
        loss = (output.terms * batch.unit_weights).sum()
        if self.settings.entropy:
            loss = loss - self.settings.entropy * (scores.entropies * batch.token_weights).sum()
        loss.backward()
        measure_units(self.meter, batch, **output.metrics)
        measure_gradient_share(self.meter, batch, gradient[0])
        return loss.item()

    def _step(self, policy: str) -> None:
        norm = self.optimizers[policy].step()
        self.moved.add(policy)
        for scope in ("", f"policies/{policy}/"):
            self.meter.add(f"{scope}gradient_norm", norm)
            self.meter.add(f"{scope}skipped_updates", float(not math.isfinite(norm)))
