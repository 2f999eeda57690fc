"""Update of the policies in a phase: epochs of minibatches, the loss and gradient of each, and optimizer steps.

::

    run(phase) ──▶ minibatches ──▶ score π_old ──▶ per minibatch: forward ──▶ loss ──▶ backward ──▶ optimizer step
        └──▶ line search and team trust region, on the whole change of the phase
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from marft.common.errors import UserError
from marft.common.types import ActionKey, Sample
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.objective import LossInputs, Objective
from marft.config.interfaces.schedule import UpdatePhase
from marft.models.devices import DeferredReads
from marft.models.log_probs import TokenScores
from marft.trainer.batching import BatchCounts, IdleBatch, Packing, minibatches, select_mixed_lengths
from marft.trainer.learner_metrics import MetricAccumulator, MicroBatchMetrics
from marft.trainer.loss import correct_sampler, extra_losses, k3_estimate, teammate_loss, weigh_units
from marft.trainer.micro_batch import FixedLogProbs, MicroBatch
from marft.trainer.objectives.pairs import PairObjective
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.preferences import PreferenceBatch, ReferencePolicy, Scores
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks, merge_over_ranks, sum_over_ranks
from marft.trainer.scoring import score_actions, score_with_teammates
from marft.trainer.trust_region import backtrack_update, environment_steps, joint_kl, scale_to_budget

PACKING_CHECK_INTERVAL = 17  # steps between packing checks; a prime, so that policies updated in turn are all checked
PACKING_CHECK_ACTIONS = 4  # actions per check, scored in one extra forward pass


@dataclass(frozen=True, slots=True, eq=False)
class UpdateSetup:
    """Parts of a learner that its updates use.

    Args:
        settings: settings of the algorithm.
        objective: objective of the update.
        optimizers: optimizer of each policy on this rank.
        packing: packing of the samples.
        seed: seed of the run.
        ranks: ranks that train together. Each gets all samples and processes its share.
        reference: reference policy of preference pairs; None for objectives on single actions.
    """

    settings: AlgorithmSettings
    objective: Objective
    optimizers: Mapping[str, PolicyOptimizer]
    packing: Packing
    seed: int = 0
    ranks: Ranks = SINGLE_RANK
    reference: ReferencePolicy | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """Samples for an update, and their preference pairs if the objective uses pairs."""

    samples: Sequence[Sample]
    preferences: PreferenceBatch | None = None

    @property
    def scored(self) -> Sequence[Sample]:
        """Samples to score, including both sides in pairs from policies without an update."""
        return self.samples if self.preferences is None else self.preferences.flatten()

    @property
    def policies(self) -> set[str]:
        """Policies to update."""
        return {sample.action.policy for sample in self.samples}


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """Result from a micro-batch's forward pass."""

    scores: TokenScores
    old: Tensor  # [T] log-probabilities under π_old
    teammate_log_probs: Tensor | None


class PolicyUpdater:
    """Policy updater of a training step, for a phase at a time.

    The denominator of a ratio is π_old, the policy at the start of the step. Before a policy's first update, π_old is
    the current policy, so its ratios are exactly 1, independent of the engine's rounding. Samples for later updates are
    scored once before, with the packing of the first epoch.

    Args:
        setup: parts of the learner.
        fixed: log-probabilities scored before the step.
        preferences: preference pairs of the step; None for objectives on single actions.
        check_packing: True to measure whether scores depend on packing, if scores will be compared.
    """

    def __init__(
        self,
        setup: UpdateSetup,
        fixed: FixedLogProbs,
        preferences: PreferenceBatch | None = None,
        check_packing: bool = False,
    ) -> None:
        self.settings, self.objective, self.optimizers = setup.settings, setup.objective, setup.optimizers
        self.packing, self.seed, self.ranks, self.reference = setup.packing, setup.seed, setup.ranks, setup.reference
        self.fixed, self.preferences, self.check_packing = fixed, preferences, check_packing
        self.accumulator = MetricAccumulator()
        self.old: dict[ActionKey, Floats] = dict(fixed.old)  # log-probabilities under π_old so far, by the action's key
        self.updated_policies: set[str] = set()  # policies updated since the start of the step

    def run(self, phase: UpdatePhase, samples: Sequence[Sample], step: int, budget: float = 0.0) -> None:
        """Run the epochs of a phase, until the end or the KL stop.

        Args:
            phase: policies to update, and limits.
            samples: samples of all policies.
            step: index of the training step.
            budget: maximum joint KL of the phase, in nats per environment step; 0 is no limit.

        Raises:
            UserError: the phase has a KL limit, which needs a surrogate; preference pairs have none.
        """
        phase_samples = [sample for sample in samples if sample.action.policy in phase.policies]
        self.accumulator.add("idle_phase_fraction", float(not phase_samples))
        if not phase_samples:
            return
        objective = self.objective.with_clip_scale(phase.clip_scale)
        plan = [self._split(phase, phase_samples, step, epoch) for epoch in range(self.settings.epochs)]
        self.packing = self.packing.with_fixed_sizes([part.scored for parts in plan for part in parts])
        unscored = plan[0]
        if self.updated_policies.isdisjoint(phase.policies):  # the first minibatch is scored during its forward pass
            unscored = unscored[1:]
        for part in unscored:
            self._score_old(part.samples)
        phase_optimizers = {name: self.optimizers[name] for name in phase.policies if name in self.optimizers}
        limited = phase.kl_limit or budget
        before = {name: optimizer.snapshot() for name, optimizer in phase_optimizers.items()} if limited else {}
        self._run_epochs(plan, objective, self._select_for_check(phase, phase_samples))
        if phase.kl_limit and any(sample.advantages.any() for sample in phase_samples):
            fraction = backtrack_update(
                phase_optimizers, before, lambda: self._is_accepted(phase_samples, objective, phase.kl_limit)
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

    def score_current(self, samples: Sequence[Sample]) -> dict[ActionKey, Floats]:
        """Return log-probabilities under the current policies, packed to be comparable with :attr:`old`."""
        return score_actions(self.packing, samples, self.ranks)

    # minibatches

    def _split(self, phase: UpdatePhase, phase_samples: Sequence[Sample], step: int, epoch: int) -> list[Minibatch]:
        """Split a phase's samples into the minibatches of an epoch: single actions, or uncut preference pairs."""
        count = self.settings.minibatches
        if self.preferences is None:
            return [Minibatch(part) for part in minibatches(phase_samples, count, self.seed, step, epoch)]
        if phase.kl_limit:
            raise UserError(
                "a schedule's kl_limit accepts updates by what a surrogate gains, and comparisons have none: set it to "
                "0, or use algorithm.team_kl"
            )
        parts = self.preferences.select_policies(phase.policies).split(count, self.seed, step, epoch)
        return [Minibatch(part.flatten(phase.policies), part) for part in parts]

    def _run_epochs(
        self, plan: Sequence[Sequence[Minibatch]], objective: Objective, check_samples: Sequence[Sample]
    ) -> None:
        reference: Scores = {}
        if self.reference is not None:
            pair_samples = {sample.action.key: sample for part in plan[0] for sample in part.scored}
            reference = self.reference.scores(list(pair_samples.values()), self.score_current, self.ranks)
        for epoch, parts in enumerate(plan):
            for number, part in enumerate(parts):
                check = check_samples if epoch == number == 0 else ()
                samples = self._weight_samples(part, objective, reference)
                if not self._process_minibatch(samples, objective, is_first_epoch=epoch == 0, check=check):
                    self.accumulator.add("kl_stops", 1.0)
                    return

    def _weight_samples(self, part: Minibatch, objective: Objective, reference: Scores) -> Sequence[Sample]:
        """Return a minibatch's samples; for pairs, with coefficients under the current policies."""
        if part.preferences is None:
            return part.samples
        assert isinstance(objective, PairObjective)
        return part.preferences.compute_coefficients(
            objective,
            self.score_current(part.scored),
            reference,
            part.policies,
            self.settings.denominator == "pooled",
            self.accumulator,
        )

    # scores under π_old

    def _score_old(self, samples: Sequence[Sample]) -> None:
        """Score samples under π_old before their policies are updated.

        Earlier scores are reused only if packing makes no difference.
        """
        scored = self.old if self.fixed.exact and self.packing.is_exact(samples) else {}
        unscored = [s for s in samples if s.action.policy not in self.updated_policies and s.action.key not in scored]
        self.old |= score_actions(self.packing, unscored, self.ranks)

    def _old_log_probs(self, batch: MicroBatch, scores: TokenScores, deferred: DeferredReads) -> Tensor:
        """Return log-probabilities under π_old, shape [T]; before a policy's first update, the current scores."""
        if self.updated_policies.isdisjoint(sample.action.policy for sample in batch.samples):
            deferred.add(scores.log_probs, lambda flat: self.old.update(batch.split_by_action(flat)))
            return scores.log_probs.detach()
        return batch.collect_tokens(self.old, scores.log_probs.dtype)

    def _share_old_scores(self, samples: Sequence[Sample]) -> None:
        """Exchange scores under π_old between ranks, because later minibatches divide the samples differently."""
        if self.ranks.count > 1:
            self.old |= merge_over_ranks(
                self.ranks, {sample.action.key: self.old[sample.action.key] for sample in samples}
            )

    def _select_for_check(self, phase: UpdatePhase, samples: Sequence[Sample]) -> list[Sample]:
        """Return some actions from a phase, with mixed lengths, for a packing check.

        The check matters only if scores of different packings are compared: in later epochs, in corrections for later
        policies, and in acceptance tests. The first epoch uses the packing of the stored scores.
        """
        schedule = self.settings.schedule
        is_compared = (
            self.settings.epochs > 1 or phase.kl_limit > 0 or self.settings.team_kl > 0 or schedule.correction != ""
        )
        if not (self.check_packing and is_compared):
            return []
        return select_mixed_lengths(
            [s for s in samples if s.action.policy not in self.updated_policies], PACKING_CHECK_ACTIONS
        )

    def _measure_packing(self, samples: Sequence[Sample]) -> None:
        """Measure the difference to scores from another packing, which equals the error in a ratio between them."""
        rescored = self.score_current(samples)
        for sample in samples:
            mismatch = np.abs(rescored[sample.action.key] - self.old[sample.action.key]).max()
            self.accumulator.update_max("packing_difference", float(mismatch))

    # loss and step

    def _process_minibatch(
        self, samples: Sequence[Sample], objective: Objective, is_first_epoch: bool, check: Sequence[Sample]
    ) -> bool:
        """Process one global minibatch: accumulate its gradient over micro-batches, then update its policies.

        Return False if the KL exceeds the limit; then no optimizer step is taken. The KL covers the whole minibatch and
        is known before the optimizer step. With a single micro-batch on a CPU it is known before the backward pass,
        which is then skipped.

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
        step_metrics = MetricAccumulator()  # merged only if an optimizer step follows
        deferred = DeferredReads()
        padded = self.packing.pad_to_ranks(batches, policies, self.ranks)
        # on a GPU, an early read would cost more than a backward pass in vain
        reads_early = self.settings.kl_stop > 0 and max(self.ranks.gather(len(padded))) <= 1 and self.packing.is_on_cpu
        # a rank without any still takes part in the exchange of the KL
        passes: list[MicroBatch | IdleBatch | None] = [*padded] or [None]
        for batch in passes:
            idle = batch.forward() if isinstance(batch, IdleBatch) else None  # before any collective, as on other ranks
            forward = self._forward(batch, is_first_epoch, kl, deferred) if isinstance(batch, MicroBatch) else None
            if reads_early:
                deferred.read_pending()
                if self._exceeds_kl_stop(kl):
                    self._share_old_scores(own_samples)
                    return False
            if idle is not None:
                idle.backward()
            if isinstance(batch, MicroBatch) and forward is not None:
                metrics = MicroBatchMetrics(batch, step_metrics, deferred)
                deferred.add(self._backward(forward, objective, metrics), partial(_add_to, loss))
        norms = self._clip_gradients(policies, deferred)
        deferred.read_pending()  # the only device synchronization of a minibatch
        self._share_old_scores(own_samples)
        if self._exceeds_kl_stop(kl):
            return False
        if check:
            self._measure_packing(check)
        self.accumulator.merge(step_metrics)
        self.accumulator.add("policy_loss", float(sum_over_ranks(self.ranks, loss)[0]))
        self._step_optimizers(policies, norms)
        return True

    def _forward(self, batch: MicroBatch, is_first_epoch: bool, kl: Floats, deferred: DeferredReads) -> _Forward:
        """Score a micro-batch, and add its KL to π_old and its token count to ``kl``."""
        scores, teammate_log_probs = score_with_teammates(batch, entropy_gradient=self.settings.entropy_coefficient > 0)
        old = self._old_log_probs(batch, scores, deferred)
        token_kl = k3_estimate(scores.log_probs.detach() - old)
        metrics = MicroBatchMetrics(batch, self.accumulator, deferred)
        metrics.add_tokens(entropy=scores.entropies, kl_before_step=token_kl)
        if is_first_epoch:
            metrics.add_mismatch(old)
            metrics.add_entropies(scores.entropies)
        deferred.add(token_kl.sum(), lambda sums: _add_to(kl, (sums[0], len(token_kl))))
        return _Forward(scores, old, teammate_log_probs)

    def _backward(self, forward: _Forward, objective: Objective, metrics: MicroBatchMetrics) -> Tensor:
        """Add a micro-batch's gradient → its loss."""
        batch, settings, scores, old = metrics.batch, self.settings, forward.scores, forward.old
        gradient: list[Tensor] = []
        scores.log_probs.register_hook(gradient.append)
        correction = correct_sampler(settings.sampler_correction, batch, old)
        if correction is not None:
            metrics.add_tokens(sampler_weight=correction)
            metrics.add_weights(batch.per_unit(correction))
        units = LossInputs(
            batch.unit_log_probs(scores.log_probs),
            batch.unit_log_probs(old) - batch.log_factors,
            batch.advantages,
            batch.unit_log_probs(batch.engine_log_probs),
        )
        output = objective(units)
        loss = (output.terms * weigh_units(batch, correction)).sum() + extra_losses(settings, batch, scores, old)
        if batch.teammate_text is not None and forward.teammate_log_probs is not None:
            term, weights = teammate_loss(settings.teammate_text, batch.teammate_text, forward.teammate_log_probs)
            metrics.add_teammate_weights(weights)
            loss = loss + term
        loss.backward()
        metrics.add_units(**output.metrics)
        metrics.add_gradients(gradient[0])
        return loss

    def _exceeds_kl_stop(self, kl: Floats) -> bool:
        """Return True if the mean KL over tokens of all ranks exceeds the limit."""
        if not self.settings.kl_stop:
            return False
        kl_sum, tokens = sum_over_ranks(self.ranks, kl)
        return not kl_sum / tokens <= self.settings.kl_stop

    def _count_batch(self, samples: Sequence[Sample]) -> BatchCounts:
        return BatchCounts.from_samples(samples, self.settings.denominator == "pooled")

    def _clip_gradients(self, policies: Sequence[str], deferred: DeferredReads) -> Mapping[str, Floats]:
        """Sum the gradients over ranks and clip them → gradient norms before clipping, after the deferred reads."""
        norms = {policy: np.zeros(1) for policy in policies if self.packing.ranks_of(policy, self.ranks) is not None}
        for policy, norm in norms.items():
            ranks, optimizer = self.packing.ranks_of(policy, self.ranks), self.optimizers[policy]
            assert ranks is not None
            ranks.sum_gradients(optimizer.parameters.values())
            deferred.add(optimizer.clip_gradient(), partial(_add_to, norm))
        return norms

    def _step_optimizers(self, policies: Sequence[str], norms: Mapping[str, Floats]) -> None:
        self.updated_policies.update(policies)
        for policy, norm in norms.items():
            ranks, size = self.packing.ranks_of(policy, self.ranks), float(norm[0])
            assert ranks is not None
            if math.isfinite(size):
                self.optimizers[policy].step_clipped()
            part = 1.0 / ranks.count  # every rank reports the same norm
            for scope in ("", f"policies/{policy}/"):
                self.accumulator.add(f"{scope}gradient_norm", size * part, part)
                self.accumulator.add(f"{scope}skipped_updates", float(not math.isfinite(size)) * part, part)

    # acceptance test of the line search

    def _is_accepted(self, samples: Sequence[Sample], objective: Objective, limit: float) -> bool:
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
            weights = weigh_units(batch, correct_sampler(self.settings.sampler_correction, batch, old))
            units, sampler = batch.unit_log_probs(old), batch.unit_log_probs(batch.engine_log_probs.double())
            old_losses, current_losses = (
                objective(LossInputs(u, units - batch.log_factors, batch.advantages.double(), sampler)).terms
                for u in (units, batch.unit_log_probs(batch.collect_tokens(current)))
            )
            gain += float(((old_losses - current_losses) * weights).sum())
        return gain


def _add_to(sums: Floats, numbers: Floats | tuple[float, float]) -> None:
    sums += numbers
