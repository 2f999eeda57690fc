"""Policy updates in a training step: phases, epochs, global minibatches, KL stop and team trust region."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from marft.common.types import ActionKey, Sample
from marft.config.algorithm import AlgorithmSettings
from marft.models.devices import DeferredReads
from marft.models.log_probs import TokenScores
from marft.trainer.batching import (
    BatchCounts,
    FixedLogProbs,
    IdleBatch,
    MicroBatch,
    Packing,
    select_mixed_lengths,
)
from marft.trainer.credit_log import CreditLog
from marft.trainer.interfaces import (
    Floats,
    LossInputs,
    Objective,
    TeammateWeighting,
    UpdatePhase,
    UpdateSchedule,
)
from marft.trainer.learner_metrics import (
    measure_gradient_share,
    measure_mismatch,
    measure_tokens,
    measure_units,
    measure_weights,
)
from marft.trainer.line_search import backtrack_update, scale_to_budget
from marft.trainer.metric_accumulator import MetricAccumulator
from marft.trainer.minibatches import Minibatch, split_minibatches
from marft.trainer.objectives.pairs import PairObjective
from marft.trainer.objectives.terms import kl_terms, sampler_weights
from marft.trainer.optimizers import PolicyOptimizer, step_optimizers
from marft.trainer.preference_batch import PreferenceBatch
from marft.trainer.rank_group import SINGLE_RANK, Ranks, merge_over_ranks, sum_over_ranks
from marft.trainer.reference import ReferencePolicy, Scores
from marft.trainer.scoring import k3_estimate, score_actions, score_with_teammates
from marft.trainer.team_kl import environment_steps, joint_kl
from marft.trainer.teammate_text import TeammateText

PACKING_CHECK_INTERVAL = 17  # steps between packing checks; a prime, so that policies updated in turn are all checked
PACKING_CHECK_ACTIONS = 4  # actions per check, scored in one extra forward pass


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """Result from a micro-batch's forward pass."""

    scores: TokenScores
    old: Tensor  # [T] log-probabilities under π_old
    teammate_log_probs: Tensor | None


class PolicyUpdater:
    """Policy updater, for a phase at a time.

    The denominator of a ratio is π_old, the policy at the start of the step. Before a policy's first update, π_old is
    the current policy, so its ratios are exactly 1, independent of the engine's rounding. Samples for later updates are
    scored once before, with the packing of the first epoch.

    Args:
        settings: settings of the algorithm.
        objective: objective of the update.
        optimizers: optimizer of each policy on this rank.
        packing: packing of the samples.
        fixed: log-probabilities scored before the step.
        accumulator: receives the metrics.
        seed: seed of the run.
        check_packing: True to measure whether scores depend on packing, if scores will be compared.
        ranks: ranks that train together. Each gets all samples and processes its share.
        preferences: preference pairs of the step; None for objectives on single actions.
        reference: reference policy of the pairs.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        objective: Objective,
        optimizers: Mapping[str, PolicyOptimizer],
        packing: Packing,
        fixed: FixedLogProbs,
        accumulator: MetricAccumulator,
        seed: int,
        check_packing: bool = False,
        ranks: Ranks = SINGLE_RANK,
        preferences: PreferenceBatch | None = None,
        reference: ReferencePolicy | None = None,
    ) -> None:
        self.settings, self.objective, self.optimizers, self.packing = settings, objective, optimizers, packing
        self.preferences, self.reference = preferences, reference
        self.fixed, self.accumulator, self.seed, self.check_packing = fixed, accumulator, seed, check_packing
        self.ranks = ranks
        self.old: dict[ActionKey, Floats] = dict(fixed.old)  # log-probabilities under π_old so far, by the action's key
        self.credit_log = CreditLog()
        self.updated_policies: set[str] = set()  # policies updated since the start of the step

    def run(self, phase: UpdatePhase, samples: Sequence[Sample], step: int, budget: float = 0.0) -> None:
        """Run the epochs of a phase, until the end or the KL stop.

        Args:
            phase: policies to update, and limits.
            samples: samples of all policies.
            step: index of the training step.
            budget: maximum joint KL of the phase, in nats per environment step; 0 is no limit.
        """
        phase_samples = [sample for sample in samples if sample.action.policy in phase.policies]
        self.accumulator.add("idle_phases", float(not phase_samples))
        if not phase_samples:
            return
        settings, objective = self.settings, self.objective.scaled(phase.clip_scale)
        plan = [
            split_minibatches(phase_samples, self.preferences, phase, settings, self.seed, step, epoch)
            for epoch in range(settings.epochs)
        ]
        self.packing = self.packing.with_fixed_sizes([part.scored for parts in plan for part in parts])
        for part in plan[0][self.updated_policies.isdisjoint(phase.policies) :]:
            self._score_old(part.samples)
        phase_optimizers = {name: self.optimizers[name] for name in phase.policies if name in self.optimizers}
        before = (
            {name: optimizer.snapshot() for name, optimizer in phase_optimizers.items()}
            if phase.kl_limit or budget
            else {}
        )
        self._run_epochs(plan, objective, self._select_for_check(phase, phase_samples))
        if phase.kl_limit and any(sample.advantages.any() for sample in phase_samples):
            fraction = backtrack_update(
                phase_optimizers, before, lambda: self._is_good(phase_samples, objective, phase.kl_limit)
            )
            self.accumulator.add("accepted_fraction", fraction)
            self.accumulator.add("rollbacks", float(fraction == 0.0))
        elif phase.kl_limit:  # all advantages are 0: undo changes by momentum and regularizers
            for name, optimizer in phase_optimizers.items():
                optimizer.restore(before[name])
        if budget:
            steps = environment_steps(samples)
            fraction, kl = scale_to_budget(
                phase_optimizers,
                before,
                lambda: joint_kl(phase_samples, self.old, self.score_current(phase_samples), steps),
                budget,
            )
            self.accumulator.add("team_kl", kl)
            self.accumulator.add("accepted_fraction", fraction)

    def _weight_samples(self, part: Minibatch, objective: Objective, reference: Scores) -> Sequence[Sample]:
        """Return a minibatch's samples; for pairs, with coefficients under the current policies."""
        if part.preferences is None:
            return part.samples
        return part.preferences.compute_coefficients(
            cast("PairObjective", objective),
            self.score_current(part.scored),
            reference,
            part.policies,
            self.settings.denominator == "pooled",
            self.accumulator,
        )

    def _score_reference(self, plan: Sequence[Minibatch]) -> Scores:
        """Return the reference log-probabilities for every action in a pair."""
        if self.preferences is None or self.reference is None:
            return {}
        pair_samples = {sample.action.key: sample for part in plan for sample in part.scored}
        return self.reference.scores(list(pair_samples.values()), self.score_current, self.ranks)

    def score_current(self, samples: Sequence[Sample]) -> dict[ActionKey, Floats]:
        """Return log-probabilities under the current policies, packed to be comparable with :attr:`old`."""
        return score_actions(self.packing, samples, self.ranks)

    def _score_old(self, samples: Sequence[Sample]) -> None:
        """Score samples under π_old before their policies are updated.

        Earlier scores are reused only if packing makes no difference.
        """
        scored = self.old if self.fixed.exact and self.packing.is_exact(samples) else {}
        unscored = [s for s in samples if s.action.policy not in self.updated_policies and s.action.key not in scored]
        self.old |= score_actions(self.packing, unscored, self.ranks)

    def _select_for_check(self, phase: UpdatePhase, samples: Sequence[Sample]) -> list[Sample]:
        """Return some actions from a phase, with mixed lengths, for a packing check.

        The check matters only if scores of different packings are compared: in later epochs, in corrections for later
        policies, and in acceptance tests. The first epoch uses the packing of the stored scores.
        """
        schedule = cast("UpdateSchedule", self.settings.schedule)
        is_compared = (
            self.settings.epochs > 1 or phase.kl_limit > 0 or self.settings.team_kl > 0 or schedule.correction != ""
        )
        if not (self.check_packing and is_compared):
            return []
        return select_mixed_lengths(
            [s for s in samples if s.action.policy not in self.updated_policies], PACKING_CHECK_ACTIONS
        )

    def _run_epochs(
        self, plan: Sequence[Sequence[Minibatch]], objective: Objective, check_samples: Sequence[Sample]
    ) -> None:
        reference = self._score_reference(plan[0])
        for epoch, parts in enumerate(plan):
            for number, part in enumerate(parts):
                check = check_samples if epoch == number == 0 else ()
                samples = self._weight_samples(part, objective, reference)
                if not self._process_minibatch(samples, objective, is_first_epoch=epoch == 0, check=check):
                    self.accumulator.add("kl_stops", 1.0)
                    return

    def _is_good(self, samples: Sequence[Sample], objective: Objective, limit: float) -> bool:
        """Return True if the policies are within the KL limit and the surrogate has improved (Kuba et al. 2022).

        The KL to π_old is k3, the mean over sampled tokens, in nats.
        """
        current = self.score_current(samples)
        log_ratios = np.concatenate([current[sample.action.key] - self.old[sample.action.key] for sample in samples])
        return (
            float(k3_estimate(torch.from_numpy(log_ratios)).mean()) <= limit
            and self._compute_gain(samples, objective, current) > 0.0
        )

    @torch.no_grad()
    def _compute_gain(
        self, samples: Sequence[Sample], objective: Objective, current: Mapping[ActionKey, Floats]
    ) -> float:
        """Return the decrease of the objective's loss relative to π_old, in float64."""
        gain = 0.0
        for batch in self.packing.micro_batches(samples, self._count_batch(samples), self.fixed):
            old = batch.collect_tokens(self.old)
            weights = self._unit_weights(batch, self._sampler_weights(batch, old))
            units = batch.units(old)
            old_losses, current_losses = (
                objective(LossInputs(u, units - batch.log_factors, batch.advantages.double())).terms
                for u in (units, batch.units(batch.collect_tokens(current)))
            )
            gain += float(((old_losses - current_losses) * weights).sum())
        return gain

    def _count_batch(self, samples: Sequence[Sample]) -> BatchCounts:
        return BatchCounts.from_samples(samples, self.settings.denominator == "pooled")

    def _process_minibatch(
        self, samples: Sequence[Sample], objective: Objective, is_first_epoch: bool, check: Sequence[Sample]
    ) -> bool:
        """Process one global minibatch: accumulate its gradient over micro-batches, then update its policies.

        Return False if the KL exceeds the limit; then no optimizer step is taken. The KL covers the whole minibatch and
        is known before the optimizer step. With a single micro-batch it is known before the backward pass, which is
        then skipped.

        Args:
            samples: samples of the minibatch.
            objective: objective of the update.
            is_first_epoch: True in the first epoch.
            check: actions for the packing check, scored before the optimizer step.
        """
        policies = sorted({sample.action.policy for sample in samples})
        own_samples = self.packing.share_of(samples, self.ranks)
        batches = self.packing.micro_batches(own_samples, self._count_batch(samples), self.fixed) if own_samples else []
        for policy in policies:
            if policy in self.optimizers:  # trained on this rank
                self.optimizers[policy].zero_grad()
        kl, loss = np.zeros(2), np.zeros(1)  # KL: sum over tokens, number of tokens; sum of losses
        step_metrics, step_log = MetricAccumulator(), CreditLog()  # merged only if an optimizer step follows
        deferred = DeferredReads()
        padded = self.packing.pad_to_ranks(batches, policies, self.ranks)
        is_single_batch = max(self.ranks.gather(len(padded))) <= 1
        passes: list[MicroBatch | IdleBatch | None] = [*padded] or [None] * is_single_batch
        for batch in passes:
            idle = batch.forward() if isinstance(batch, IdleBatch) else None  # before any collective, as on other ranks
            forward = self._forward(batch, is_first_epoch, kl, deferred) if isinstance(batch, MicroBatch) else None
            if is_single_batch and self.settings.kl_stop:
                deferred.read_pending()
                if self._exceeds_kl_limit(kl):
                    self._share_old_scores(own_samples)
                    return False
            if idle is not None:
                idle.backward()
            if isinstance(batch, MicroBatch) and forward is not None:
                deferred.add(
                    self._backward(batch, forward, objective, step_metrics, step_log, deferred), partial(_add_to, loss)
                )
        deferred.read_pending()
        self._share_old_scores(own_samples)
        if self._exceeds_kl_limit(kl):
            return False
        if check:
            self._measure_packing(check)
        self.accumulator.merge(step_metrics)
        self.credit_log.merge(step_log)
        self.accumulator.add("policy_loss", float(sum_over_ranks(self.ranks, loss)[0]))
        self._step_optimizers(policies)
        return True

    def _forward(self, batch: MicroBatch, is_first_epoch: bool, kl: Floats, deferred: DeferredReads) -> _Forward:
        """Score a micro-batch, and add its KL to π_old and its token count to ``kl``."""
        scores, teammate_log_probs = score_with_teammates(batch, entropy_gradient=self.settings.entropy_coefficient > 0)
        old = self._old_log_probs(batch, scores, deferred)
        token_kl = k3_estimate(scores.log_probs.detach() - old)
        measure_tokens(deferred, self.accumulator, batch, entropy=scores.entropies, kl_before_step=token_kl)
        if is_first_epoch:
            measure_mismatch(deferred, self.accumulator, batch, old)
            self.credit_log.add_entropies(deferred, batch, scores.entropies)
        deferred.add(token_kl.sum(), lambda sums: _add_to(kl, (sums[0], len(token_kl))))
        return _Forward(scores, old, teammate_log_probs)

    def _share_old_scores(self, samples: Sequence[Sample]) -> None:
        """Exchange scores under π_old between ranks, because later minibatches divide the samples differently."""
        if self.ranks.count > 1:
            self.old |= merge_over_ranks(
                self.ranks, {sample.action.key: self.old[sample.action.key] for sample in samples}
            )

    def _old_log_probs(self, batch: MicroBatch, scores: TokenScores, deferred: DeferredReads) -> Tensor:
        """Return log-probabilities under π_old, shape [T]; before a policy's first update, the current scores."""
        if self.updated_policies.isdisjoint(sample.action.policy for sample in batch.samples):
            deferred.add(scores.log_probs, lambda flat: self.old.update(batch.split_by_action(flat)))
            return scores.log_probs.detach()
        return batch.collect_tokens(self.old, scores.log_probs.dtype)

    def _measure_packing(self, samples: Sequence[Sample]) -> None:
        """Measure the difference to scores from another packing, which equals the error in a ratio between them."""
        rescored = self.score_current(samples)
        for sample in samples:
            mismatch = np.abs(rescored[sample.action.key] - self.old[sample.action.key]).max()
            self.accumulator.update_max("packing_difference", float(mismatch))

    def _exceeds_kl_limit(self, kl: Floats) -> bool:
        """Return True if the mean KL over tokens of all ranks exceeds the limit."""
        if not self.settings.kl_stop:
            return False
        kl_sum, tokens = sum_over_ranks(self.ranks, kl)
        return not kl_sum / tokens <= self.settings.kl_stop

    def _backward(
        self,
        batch: MicroBatch,
        forward: _Forward,
        objective: Objective,
        accumulator: MetricAccumulator,
        credit_log: CreditLog,
        deferred: DeferredReads,
    ) -> Tensor:
        """Add a micro-batch's gradient → its loss."""
        scores, old, teammate_log_probs = forward.scores, forward.old, forward.teammate_log_probs
        gradient: list[Tensor] = []
        scores.log_probs.register_hook(gradient.append)
        correction = self._sampler_weights(batch, old)
        if correction is not None:
            measure_tokens(deferred, accumulator, batch, sampler_weight=correction)
            measure_weights(deferred, accumulator, batch, _to_units(batch, correction))
        units = LossInputs(batch.units(scores.log_probs), batch.units(old) - batch.log_factors, batch.advantages)
        output = objective(units)
        loss = (output.terms * self._unit_weights(batch, correction)).sum() + self._extra_losses(batch, scores, old)
        if batch.teammate_text is not None and teammate_log_probs is not None:
            loss = loss + self._teammate_loss(batch.teammate_text, teammate_log_probs, accumulator, deferred)
        loss.backward()
        measure_units(deferred, accumulator, batch, **output.metrics)
        measure_gradient_share(deferred, accumulator, batch, gradient[0])
        credit_log.add_gradients(deferred, batch, gradient[0])
        return loss

    def _sampler_weights(self, batch: MicroBatch, old: Tensor) -> Tensor | None:
        correction = self.settings.sampler_correction
        if correction.level == "none":
            return None
        return sampler_weights(correction, old, batch.engine_log_probs, batch.action_of)

    def _unit_weights(self, batch: MicroBatch, correction: Tensor | None) -> Tensor:
        """Return the weights of the objective's terms, including the sampler correction."""
        if correction is None:
            return batch.unit_weights
        return batch.unit_weights * _to_units(batch, correction)

    def _extra_losses(self, batch: MicroBatch, scores: TokenScores, old: Tensor) -> Tensor:
        """Return the extra loss terms: entropy bonus, KL to the base, likelihood in successful episodes."""
        extra = scores.log_probs.new_zeros(())
        if self.settings.entropy_coefficient:
            extra = extra - self.settings.entropy_coefficient * (scores.entropies * batch.token_weights).sum()
        kl = self.settings.kl
        if kl.coefficient and kl.apply_to == "loss":
            assert batch.base_log_probs is not None
            terms = kl_terms(kl, scores.log_probs, batch.base_log_probs, old)
            extra = extra + kl.coefficient * (terms * batch.token_weights).sum()
        if self.settings.nll_coefficient:
            extra = extra - self.settings.nll_coefficient * (scores.log_probs * batch.nll_weights).sum()
        return extra

    def _teammate_loss(
        self, text: TeammateText, log_probs: Tensor, accumulator: MetricAccumulator, deferred: DeferredReads
    ) -> Tensor:
        """Return −c · w · A · log π, summed over teammate text in the agents' turns."""
        settings = self.settings.teammate_text
        compute_weights = cast("TeammateWeighting", settings.weight).compute_weights
        weights = compute_weights(log_probs.detach(), text.author_log_probs, text.advantages)
        deferred.add(weights, lambda values: accumulator.add("teammate_weight", float(values.sum()), len(values)))
        return -settings.coefficient * (weights * text.advantages * log_probs * text.weights).sum()

    def _step_optimizers(self, policies: Sequence[str]) -> None:
        self.updated_policies.update(policies)
        policy_ranks = {policy: self.packing.ranks_of(policy, self.ranks) for policy in policies}
        own_ranks = {policy: ranks for policy, ranks in policy_ranks.items() if ranks is not None}
        for policy, ranks in own_ranks.items():
            ranks.sum_gradients(self.optimizers[policy].parameters.values())
        norms = step_optimizers([self.optimizers[policy] for policy in own_ranks])
        for (policy, ranks), norm in zip(own_ranks.items(), norms, strict=True):
            part = 1.0 / ranks.count  # every rank reports the same norm
            for scope in ("", f"policies/{policy}/"):
                self.accumulator.add(f"{scope}gradient_norm", norm * part, part)
                self.accumulator.add(f"{scope}skipped_updates", float(not math.isfinite(norm)) * part, part)


def _to_units(batch: MicroBatch, token_values: Tensor) -> Tensor:
    """Convert values per token to values per unit; at action level all tokens of an action have the same value."""
    return token_values[batch.first_tokens()] if batch.level == "action" else token_values


def _add_to(sums: Floats, numbers: Floats | tuple[float, float]) -> None:
    sums += numbers
