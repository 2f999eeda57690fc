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
from marft.models.devices import Awaited
from marft.models.log_probs import TokenScores
from marft.trainer.acceptance import accept, hold
from marft.trainer.batching import (
    Denominators,
    FixedLogProbs,
    Idle,
    MicroBatch,
    Packing,
    of_all_lengths,
)
from marft.trainer.comparing import Compared
from marft.trainer.interfaces import (
    Floats,
    LossInputs,
    Objective,
    TeammateWeight,
    UpdatePhase,
    UpdateSchedule,
)
from marft.trainer.ledger import Ledger
from marft.trainer.measuring import (
    measure_difference,
    measure_gradient_share,
    measure_tokens,
    measure_units,
    measure_weights,
)
from marft.trainer.metering import Meter
from marft.trainer.minibatches import Minibatch, minibatches_of
from marft.trainer.objectives.pairs import PairObjective
from marft.trainer.objectives.terms import kl_terms, sampler_weights
from marft.trainer.optimizers import PolicyOptimizer, step_all
from marft.trainer.rank_group import ALONE, Ranks, merged, total
from marft.trainer.reference import Reference, Scores
from marft.trainer.scoring import k3, score_actions, score_all
from marft.trainer.team_kl import environment_steps, joint_kl
from marft.trainer.teammate_text import TeammateText

PACKING_CHECKS = 17  # steps between packing checks; a prime, so that policies updated in turn are all checked
PACKING_CHECKED = 4  # actions per check, scored in one extra forward pass


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """Result from a micro-batch's forward pass."""

    scores: TokenScores
    old: Tensor  # [T] log-probabilities under π_old
    teammate_log_probs: Tensor | None


class Update:
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
        meter: receives the metrics.
        seed: seed of the run.
        check_packing: True to measure whether scores depend on packing, if scores will be compared.
        ranks: ranks that train together. Each gets all samples and processes its share.
        compared: preference pairs of the step; None for objectives on single actions.
        reference: reference policy of the pairs.
    """

    def __init__(
        self,
        settings: AlgorithmSettings,
        objective: Objective,
        optimizers: Mapping[str, PolicyOptimizer],
        packing: Packing,
        fixed: FixedLogProbs,
        meter: Meter,
        seed: int,
        check_packing: bool = False,
        ranks: Ranks = ALONE,
        compared: Compared | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.settings, self.objective, self.optimizers, self.packing = settings, objective, optimizers, packing
        self.compared, self.reference = compared, reference
        self.fixed, self.meter, self.seed, self.check_packing = fixed, meter, seed, check_packing
        self.ranks = ranks
        self.old: dict[ActionKey, Floats] = dict(fixed.old)  # log-probabilities under π_old so far, by the action's key
        self.ledger = Ledger()
        self.moved: set[str] = set()  # policies updated since the start of the step

    def run(self, phase: UpdatePhase, samples: Sequence[Sample], step: int, budget: float = 0.0) -> None:
        """Run the epochs of a phase, until the end or the KL stop.

        Args:
            phase: policies to update, and limits.
            samples: samples of all policies.
            step: index of the training step.
            budget: maximum joint KL of the phase, in nats per environment step; 0 is no limit.
        """
        mine = [sample for sample in samples if sample.action.policy in phase.policies]
        self.meter.add("idle_phases", float(not mine))
        if not mine:
            return
        settings, objective = self.settings, self.objective.scaled(phase.clip_scale)
        plan = [
            minibatches_of(mine, self.compared, phase, settings, self.seed, step, epoch)
            for epoch in range(settings.epochs)
        ]
        self.packing = self.packing.in_one_size([part.scored for parts in plan for part in parts])
        for part in plan[0][self.moved.isdisjoint(phase.policies) :]:
            self._score_old(part.samples)
        mine_optimizers = {name: self.optimizers[name] for name in phase.policies if name in self.optimizers}
        before = (
            {name: optimizer.snapshot() for name, optimizer in mine_optimizers.items()}
            if phase.kl_limit or budget
            else {}
        )
        self._epochs(plan, objective, self._to_check(phase, mine))
        if phase.kl_limit and any(sample.advantages.any() for sample in mine):
            fraction = accept(mine_optimizers, before, lambda: self._is_good(mine, objective, phase.kl_limit))
            self.meter.add("accepted_fraction", fraction)
            self.meter.add("rollbacks", float(fraction == 0.0))
        elif phase.kl_limit:  # all advantages are 0: undo changes by momentum and regularizers
            for name, optimizer in mine_optimizers.items():
                optimizer.restore(before[name])
        if budget:
            steps = environment_steps(samples)
            fraction, kl = hold(
                mine_optimizers, before, lambda: joint_kl(mine, self.old, self.score_now(mine), steps), budget
            )
            self.meter.add("team_kl", kl)
            self.meter.add("accepted_fraction", fraction)

    def _weighed(self, part: Minibatch, objective: Objective, reference: Scores) -> Sequence[Sample]:
        """Return a minibatch's samples; for pairs, with coefficients under the current policies."""
        if part.compared is None:
            return part.samples
        return part.compared.weigh(
            cast("PairObjective", objective), self.score_now(part.scored), reference,
            part.policies, self.settings.denominator == "pooled", self.meter,
        )  # fmt: skip

    def _reference_scores(self, plan: Sequence[Minibatch]) -> Scores:
        """Return the reference log-probabilities for every action in a pair."""
        if self.compared is None or self.reference is None:
            return {}
        wanted = {sample.action.key: sample for part in plan for sample in part.scored}
        return self.reference.scores(list(wanted.values()), self.score_now, self.ranks)

    def score_now(self, samples: Sequence[Sample]) -> dict[ActionKey, Floats]:
        """Return log-probabilities under the current policies, packed to be comparable with :attr:`old`."""
        return score_actions(self.packing, samples, self.ranks)

    def _score_old(self, samples: Sequence[Sample]) -> None:
        """Score samples under π_old before their policies are updated.

        Earlier scores are reused only if packing makes no difference.
        """
        scored = self.old if self.fixed.exact and self.packing.is_exact(samples) else {}
        wanted = [s for s in samples if s.action.policy not in self.moved and s.action.key not in scored]
        self.old |= score_actions(self.packing, wanted, self.ranks)

    def _to_check(self, phase: UpdatePhase, samples: Sequence[Sample]) -> list[Sample]:
        """Return some actions from a phase, with mixed lengths, for a packing check.

        The check matters only if scores of different packings are compared: in later epochs, in corrections for later
        policies, and in acceptance tests. The first epoch uses the packing of the stored scores.
        """
        schedule = cast("UpdateSchedule", self.settings.schedule)
        compared = (
            self.settings.epochs > 1 or phase.kl_limit > 0 or self.settings.team_kl > 0 or schedule.correction != ""
        )
        if not (self.check_packing and compared):
            return []
        return of_all_lengths([s for s in samples if s.action.policy not in self.moved], PACKING_CHECKED)

    def _epochs(
        self, plan: Sequence[Sequence[Minibatch]], objective: Objective, to_check: Sequence[Sample]
    ) -> None:  # fmt: skip
        reference = self._reference_scores(plan[0])
        for epoch, parts in enumerate(plan):
            for number, part in enumerate(parts):
                check = to_check if epoch == number == 0 else ()
                samples = self._weighed(part, objective, reference)
                if not self._minibatch(samples, objective, first_look=epoch == 0, check=check):
                    self.meter.add("kl_stops", 1.0)
                    return

    def _is_good(self, samples: Sequence[Sample], objective: Objective, limit: float) -> bool:
        """Return True if the policies are within the KL limit and the surrogate has improved (Kuba et al. 2022).

        The KL to π_old is k3, the mean over sampled tokens, in nats.
        """
        now = self.score_now(samples)
        moved = np.concatenate([now[sample.action.key] - self.old[sample.action.key] for sample in samples])
        return float(k3(torch.from_numpy(moved)).mean()) <= limit and self._gain(samples, objective, now) > 0.0

    @torch.no_grad()
    def _gain(self, samples: Sequence[Sample], objective: Objective, now: Mapping[ActionKey, Floats]) -> float:
        """Return the decrease of the objective's loss relative to π_old, in float64."""
        gain = 0.0
        for batch in self.packing.micro_batches(samples, self._denominators(samples), self.fixed):
            old = batch.of_tokens(self.old)
            weights = self._unit_weights(batch, self._sampler_weights(batch, old))
            units = batch.units(old)
            at_old, at_now = (
                objective(LossInputs(u, units - batch.log_factors, batch.advantages.double())).terms
                for u in (units, batch.units(batch.of_tokens(now)))
            )
            gain += float(((at_old - at_now) * weights).sum())
        return gain

    def _denominators(self, samples: Sequence[Sample]) -> Denominators:
        return Denominators.of(samples, self.settings.denominator == "pooled")

    def _minibatch(
        self, samples: Sequence[Sample], objective: Objective, first_look: bool, check: Sequence[Sample]
    ) -> bool:
        """Process one global minibatch: accumulate its gradient over micro-batches, then update its policies.

        Return False if the KL exceeds the limit; then no optimizer step is taken. The KL covers the whole minibatch and
        is known before the optimizer step. With a single micro-batch it is known before the backward pass, which is
        then skipped.

        Args:
            samples: samples of the minibatch.
            objective: objective of the update.
            first_look: True in the first epoch.
            check: actions for the packing check, scored before the optimizer step.
        """
        policies = sorted({sample.action.policy for sample in samples})
        mine = self.packing.share_of(samples, self.ranks)
        batches = self.packing.micro_batches(mine, self._denominators(samples), self.fixed) if mine else []
        for policy in policies:
            if policy in self.optimizers:  # trained on this rank
                self.optimizers[policy].zero_grad()
        kl, loss = np.zeros(2), np.zeros(1)  # KL: sum over tokens, number of tokens; sum of losses
        stepped_on, pushed = Meter(), Ledger()  # merged only if an optimizer step follows
        awaited = Awaited()
        in_step = self.packing.in_step(batches, policies, self.ranks)
        once = max(self.ranks.gather(len(in_step))) <= 1
        passes: list[MicroBatch | Idle | None] = [*in_step] or [None] * once
        for batch in passes:
            idle = batch.forward() if isinstance(batch, Idle) else None  # before any collective, as on other ranks
            forward = self._forward(batch, first_look, kl, awaited) if isinstance(batch, MicroBatch) else None
            if once and self.settings.kl_stop:
                awaited.read()
                if self._over_limit(kl):
                    self._tell_old(mine)
                    return False
            if idle is not None:
                idle.backward()
            if isinstance(batch, MicroBatch) and forward is not None:
                awaited.add(
                    self._backward(batch, forward, objective, stepped_on, pushed, awaited), partial(_add_to, loss)
                )
        awaited.read()
        self._tell_old(mine)
        if self._over_limit(kl):
            return False
        if check:
            self._measure_packing(check)
        self.meter.absorb(stepped_on)
        self.ledger.absorb(pushed)
        self.meter.add("policy_loss", float(total(self.ranks, loss)[0]))
        self._step(policies)
        return True

    def _forward(self, batch: MicroBatch, first_look: bool, kl: Floats, awaited: Awaited) -> _Forward:
        """Score a micro-batch, and add its KL to π_old and its token count to ``kl``."""
        scores, teammate_log_probs = score_all(batch, entropy_gradient=self.settings.entropy > 0)
        old = self._old(batch, scores, awaited)
        of_tokens = k3(scores.log_probs.detach() - old)
        measure_tokens(awaited, self.meter, batch, entropy=scores.entropies, kl_before_step=of_tokens)
        if first_look:
            measure_difference(awaited, self.meter, batch, old)
            self.ledger.looked_at(awaited, batch, scores.entropies)
        awaited.add(of_tokens.sum(), lambda of_all: _add_to(kl, (of_all[0], len(of_tokens))))
        return _Forward(scores, old, teammate_log_probs)

    def _tell_old(self, samples: Sequence[Sample]) -> None:
        """Exchange scores under π_old between ranks, because later minibatches divide the samples differently."""
        if self.ranks.count > 1:
            self.old |= merged(self.ranks, {sample.action.key: self.old[sample.action.key] for sample in samples})

    def _old(self, batch: MicroBatch, scores: TokenScores, awaited: Awaited) -> Tensor:
        """Return log-probabilities under π_old, shape [T]; before a policy's first update, the current scores."""
        if self.moved.isdisjoint(sample.action.policy for sample in batch.samples):
            awaited.add(scores.log_probs, lambda flat: self.old.update(batch.by_action(flat)))
            return scores.log_probs.detach()
        return batch.of_tokens(self.old, scores.log_probs.dtype)

    def _measure_packing(self, samples: Sequence[Sample]) -> None:
        """Measure the difference to scores from another packing, which equals the error in a ratio between them."""
        again = self.score_now(samples)
        for sample in samples:
            off = np.abs(again[sample.action.key] - self.old[sample.action.key]).max()
            self.meter.peak("packing_difference", float(off))

    def _over_limit(self, kl: Floats) -> bool:
        """Return True if the mean KL over tokens of all ranks exceeds the limit."""
        if not self.settings.kl_stop:
            return False
        of_tokens, tokens = total(self.ranks, kl)
        return not of_tokens / tokens <= self.settings.kl_stop

    def _backward(
        self,
        batch: MicroBatch,
        forward: _Forward,
        objective: Objective,
        meter: Meter,
        ledger: Ledger,
        awaited: Awaited,
    ) -> Tensor:
        """Add a micro-batch's gradient → its loss."""
        scores, old, teammate_log_probs = forward.scores, forward.old, forward.teammate_log_probs
        gradient: list[Tensor] = []
        scores.log_probs.register_hook(gradient.append)
        correction = self._sampler_weights(batch, old)
        if correction is not None:
            measure_tokens(awaited, meter, batch, sampler_weight=correction)
            measure_weights(awaited, meter, batch, _of_units(batch, correction))
        units = LossInputs(batch.units(scores.log_probs), batch.units(old) - batch.log_factors, batch.advantages)
        output = objective(units)
        loss = (output.terms * self._unit_weights(batch, correction)).sum() + self._extras(batch, scores, old)
        if batch.teammate_text is not None and teammate_log_probs is not None:
            loss = loss + self._teammate_loss(batch.teammate_text, teammate_log_probs, meter, awaited)
        loss.backward()
        measure_units(awaited, meter, batch, **output.metrics)
        measure_gradient_share(awaited, meter, batch, gradient[0])
        ledger.pushed(awaited, batch, gradient[0])
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
        return batch.unit_weights * _of_units(batch, correction)

    def _extras(self, batch: MicroBatch, scores: TokenScores, old: Tensor) -> Tensor:
        """Return the extra loss terms: entropy bonus, KL to the base, likelihood in successful episodes."""
        extra = scores.log_probs.new_zeros(())
        if self.settings.entropy:
            extra = extra - self.settings.entropy * (scores.entropies * batch.token_weights).sum()
        kl = self.settings.kl
        if kl.coefficient and kl.place == "loss":
            assert batch.base_log_probs is not None
            terms = kl_terms(kl, scores.log_probs, batch.base_log_probs, old)
            extra = extra + kl.coefficient * (terms * batch.token_weights).sum()
        if self.settings.nll:
            extra = extra - self.settings.nll * (scores.log_probs * batch.nll_weights).sum()
        return extra

    def _teammate_loss(self, text: TeammateText, log_probs: Tensor, meter: Meter, awaited: Awaited) -> Tensor:
        """Return −c · w · A · log π, summed over teammate text in the agents' turns."""
        settings = self.settings.teammate_text
        weigh = cast("TeammateWeight", settings.weight).weigh
        weights = weigh(log_probs.detach(), text.author_log_probs, text.advantages)
        awaited.add(weights, lambda read: meter.add("teammate_weight", float(read.sum()), len(read)))
        return -settings.coefficient * (weights * text.advantages * log_probs * text.weights).sum()

    def _step(self, policies: Sequence[str]) -> None:
        self.moved.update(policies)
        held = {policy: self.packing.ranks_of(policy, self.ranks) for policy in policies}
        here = {policy: ranks for policy, ranks in held.items() if ranks is not None}
        for policy, ranks in here.items():
            ranks.sum_gradients(self.optimizers[policy].parameters.values())
        norms = step_all([self.optimizers[policy] for policy in here])
        for (policy, ranks), norm in zip(here.items(), norms, strict=True):
            part = 1.0 / ranks.count  # every rank reports the same norm
            for scope in ("", f"policies/{policy}/"):
                self.meter.add(f"{scope}gradient_norm", norm * part, part)
                self.meter.add(f"{scope}skipped_updates", float(not math.isfinite(norm)) * part, part)


def _of_units(batch: MicroBatch, of_tokens: Tensor) -> Tensor:
    """Convert values per token to values per unit; at action level all tokens of an action have the same value."""
    return of_tokens[batch.first_tokens()] if batch.level == "action" else of_tokens


def _add_to(sums: Floats, numbers: Floats | tuple[float, float]) -> None:
    sums += numbers
