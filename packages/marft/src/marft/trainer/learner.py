"""Learner: applies a credit, an objective and a schedule to a batch of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import Tensor

from marft.agents.tasks import with_own_task
from marft.common.errors import RunError
from marft.common.types import Action, ActionKey, Episode, Sample
from marft.config.run import RunSettings, refuse_nothing_to_train
from marft.models.parts import whole
from marft.models.pool import Models
from marft.rewards.shaping import earned_alike, priced_lengths, rewards_for_credit, success_metrics
from marft.trainer.batching import FixedLogProbs, Packing, make_samples
from marft.trainer.comparing import Compared
from marft.trainer.critic import Critic
from marft.trainer.interfaces import (
    LOG_RATIO_LIMIT,
    Credit,
    CreditInputs,
    Credits,
    Floats,
    Objective,
    Progress,
    Stateful,
    UpdatePhase,
    UpdateSchedule,
)
from marft.trainer.keeping import not_finite
from marft.trainer.ledger import Ledger, Told, action_credits
from marft.trainer.measuring import (
    BASE_KL_ACTIONS,
    advantage_metrics,
    advantage_sizes,
    drawn_of_each_agent,
    effective_sizes,
    first_of_each_agent,
    gradient_shares,
    measure_base_kl,
    measure_kl,
)
from marft.trainer.metering import Meter
from marft.trainer.objectives.pairs import PairObjective
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors, restore_optimizer, under
from marft.trainer.probing import Probes
from marft.trainer.rank_group import ALONE, Ranks
from marft.trainer.reference import Reference
from marft.trainer.scoring import score_actions
from marft.trainer.supervised import refuse_traces
from marft.trainer.team_kl import shares
from marft.trainer.team_ratios import TeamRatios
from marft.trainer.update import PACKING_CHECKS, Update


@dataclass(frozen=True, slots=True, eq=False)
class CreditedEpisodes:
    """Credited batch before any update: credit for every decision, and the samples to train on."""

    episodes: Sequence[Episode]  # as played
    inputs: CreditInputs  # episodes with the rewards for credit assignment
    credits: Credits
    samples: Sequence[Sample]
    raw: Sequence[Floats]  # advantages of the samples before normalization


class Learner:
    """Reward learner: an optimizer per trained policy, and the critic.

    Args:
        run: recipe of the run.
        models: models of the run.
        ranks: ranks that train together; each gets the same episodes.

    Raises:
        ValueError: the recipe trains no policy, or a pair objective has no ``pair_losses``.
    """

    def __init__(self, run: RunSettings, models: Models, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        refuse_nothing_to_train(run)
        self.settings, self.seed = run.algorithm, run.seed
        self.credit = cast("Credit", run.algorithm.credit.model_copy(deep=True))  # own copy of their state
        self.objective = cast("Objective", run.algorithm.objective)
        self.schedule = cast("UpdateSchedule", run.algorithm.schedule.model_copy(deep=True))
        self._fresh = self.state_dict()
        self.roles = [agent.role for agent in run.agents]
        self.longest = priced_lengths(run)
        self.warmup = run.algorithm.critic.warmup_steps if run.algorithm.critic.kind != "none" else 0
        steps = run.training.steps - self.warmup  # steps with policy updates, at least one
        self.trained = run.trained_policies
        offload = run.training.offload_optimizer
        self.optimizers = {
            name: PolicyOptimizer.of(
                models.policies[name], run.algorithm.optimizer, run.learning_rate(name), steps, offload
            )
            for name in self.trained
            if models.policies[name].backbone.here
        }
        self.packing = Packing(
            backbones={name: policy.backbone for name, policy in models.policies.items()},
            adapters={name: policy.adapter for name, policy in models.policies.items()},
            temperatures={agent.role: agent.sampling.temperature for agent in run.agents},
            aggregation=run.algorithm.resolved_aggregation,
            level=run.algorithm.level,
            tokens_per_batch=run.training.tokens_per_micro_batch,
            constant_length=run.algorithm.constant_length or max(self.longest.values()),
            teammate_text=run.algorithm.teammate_text.coefficient > 0,
            share=_shares(run, self.schedule, models),
            bases={name: policy.base for name, policy in models.policies.items()},
        )
        self.base_packing = replace(
            self.packing,
            teammate_text=False,
            backbones={name: policy.reference for name, policy in models.policies.items()},
            adapters=dict.fromkeys(models.policies),
        )
        self.reference = None
        if run.algorithm.objective.reads_pairs:
            self.reference = _reference(self.objective, self.optimizers, models, self.base_packing)
        self.probes = Probes(run, models, self.packing, ranks)
        self.critic = None
        if run.algorithm.critic.kind != "none":
            self.critic = Critic(
                run.algorithm.critic,
                run.algorithm.level,
                {name: policy.reader for name, policy in models.policies.items()},
                {name: policy.base for name, policy in models.policies.items()},
                [(agent.role, agent.policy) for agent in run.agents],
                seed=run.seed,
                tokens_per_batch=run.training.tokens_per_micro_batch,
                ranks=ranks,
            )

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        told: Told = lambda _: None,
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics, for the team and under ``agents/<role>/``.

        Args:
            episodes: scored episodes.
            progress: progress of training.
            told: callback for the credit of each action.

        Raises:
            ValueError: the episodes come from traces.
            RunError: the credit returned a non-finite advantage.
        """
        refuse_traces(episodes)
        if self.reference:
            self.reference.begin_step(progress.step)
        warming_up = progress.step < self.warmup
        fixed = self.score_before_update(episodes, for_credit_alone=warming_up)
        credited = self.assign_credit(episodes, fixed)
        credits, values = credited.credits, credited.inputs.values
        metrics = self.probes.measure(episodes, progress.step)
        metrics |= {**advantage_metrics(credited.samples, credited.raw), **credits.metrics}
        if self.settings.nll:
            metrics |= success_metrics(episodes)
        given: dict[int, Floats] = {}
        old, ledger = fixed.old, Ledger()
        if credited.samples and not warming_up:
            improved, old, ledger = self._improve(credited, fixed, progress)
            metrics |= improved
            given = {id(sample.action): sample.advantages for sample in credited.samples}
        told(action_credits(episodes, credits, given, values.actions if values else None, old, ledger))
        if self.critic and values:
            targets = credits.monte_carlo if warming_up else credits.returns
            metrics |= self.critic.update(values, targets, progress.step)
        return metrics

    def assign_credit(self, episodes: Sequence[Episode], fixed: FixedLogProbs) -> CreditedEpisodes:
        """Assign credit to scored episodes.

        Args:
            episodes: scored episodes.
            fixed: log-probabilities from :meth:`score_before_update`.

        Raises:
            RunError: the credit returned a non-finite advantage.
        """
        values = self.critic.evaluate(episodes) if self.critic else None
        rewarded = rewards_for_credit(episodes, self.settings.reward, self.longest)
        inputs = CreditInputs(
            rewarded, self.settings.level, values, self._costs(episodes, fixed), trained=set(self.trained)
        )
        credits = self._assigned(inputs)
        for action, advantages in zip(inputs.actions, credits.advantages, strict=True):
            if not np.isfinite(advantages).all():
                name = self.settings.credit.name
                raise RunError(f"credit {name!r} gave {action.id} of {action.key.task!r} an advantage of {advantages}")
        return CreditedEpisodes(episodes, inputs, credits, *self._samples(episodes, credits))

    def _assigned(self, inputs: CreditInputs) -> Credits:
        """Return the credit; with ``equal_rewards = "zero"``, advantages are 0 for equal rewards.

        The critic's targets stay unchanged.
        """
        own = replace(inputs, episodes=[with_own_task(episode) for episode in inputs.episodes])
        credits = self.credit.assign(own)
        if self.settings.equal_rewards == "zero" and earned_alike(inputs.episodes):
            return replace(credits, advantages=[np.zeros_like(row) for row in credits.advantages])
        return credits

    def join(self, ranks: Ranks) -> None:
        """Replace the rank group."""
        self.ranks = self.probes.ranks = ranks
        if self.critic:
            self.critic.ranks = ranks

    def not_finite(self) -> list[str]:
        """Return the names for parts with a non-finite number."""
        return not_finite(self)

    def state_dict(self) -> dict[str, float]:
        """Return the state of credit and schedule."""
        return {
            f"{part}/{name}": value for part, it in self._stateful().items() for name, value in it.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of credit and schedule from :meth:`state_dict`.

        A part without entries is reset to its initial state.
        """
        for part, it in self._stateful().items():
            it.load_state_dict(under(state, part) or under(self._fresh, part))

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer state and the reference parameters, unsharded.

        Names are ``critic/<parameter>.exp_avg``, ``policies/<name>/<parameter>.step``, …, and
        ``reference/<policy>/<parameter>``.

        With sharded ranks, all ranks must call this method together.
        """
        critic = optimizer_tensors(self.critic.optimizer, self.critic.parameters()) if self.critic else {}
        parts = {"critic": critic, **{f"policies/{name}": it.state() for name, it in self.optimizers.items()}}
        if self.reference:
            parts["reference"] = self.reference.state()
        return {f"{part}/{name}": whole(tensor) for part, state in parts.items() for name, tensor in state.items()}

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state from :meth:`optimizer_state`."""
        if self.critic:
            restore_optimizer(self.critic.optimizer, self.critic.parameters(), under(state, "critic"))
        for name, it in self.optimizers.items():
            it.load_state(under(state, f"policies/{name}"))
        if self.reference:
            self.reference.load_state(under(state, "reference"))

    def _stateful(self) -> dict[str, Stateful]:
        parts: dict[str, object] = {"credit": self.credit, "schedule": self.schedule}
        return {part: it for part, it in parts.items() if isinstance(it, Stateful)}

    def score_before_update(self, episodes: Sequence[Episode], for_credit_alone: bool = False) -> FixedLogProbs:
        """Return the log-probabilities of trained policies' actions before the update, if the algorithm uses them.

        Args:
            episodes: scored episodes.
            for_credit_alone: True to skip scores that only a policy update needs.
        """
        kl = self.settings.kl
        if not kl.coefficient or (for_credit_alone and kl.place != "reward"):
            return FixedLogProbs()
        acting = [
            Sample(action, 1.0, np.zeros(size))
            for episode in episodes
            for action, size in zip(episode.actions, CreditInputs([episode], self.settings.level).sizes(), strict=True)
            if action.policy in self.trained
        ]
        return FixedLogProbs(
            old=score_actions(self.packing, acting, self.ranks) if kl.place == "reward" else {},
            base=score_actions(self.base_packing, acting, self.ranks),
            exact=self.packing.is_exact(acting),
        )

    def _costs(self, episodes: Sequence[Episode], fixed: FixedLogProbs) -> list[Floats]:
        """Return the KL cost of each decision: coefficient · (log π − log π_base); 0 for frozen policies."""
        kl = self.settings.kl
        if not fixed.base or kl.place != "reward":
            return []

        def cost(action: Action, size: int) -> Floats:
            if action.key not in fixed.base:
                return np.zeros(size)
            tokens = kl.coefficient * (fixed.old[action.key] - fixed.base[action.key]).clip(
                -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT
            )
            return tokens if self.settings.level == "token" else tokens.sum(keepdims=True)

        inputs = CreditInputs(episodes, self.settings.level)
        return [cost(action, size) for action, size in zip(inputs.actions, inputs.sizes(), strict=True)]

    def _samples(self, episodes: Sequence[Episode], credits: Credits) -> tuple[list[Sample], list[Floats]]:
        return make_samples(
            episodes, credits, self.trained, self.settings.normalisation,
            self.settings.normalise_advantages,
        )  # fmt: skip

    def _improve(
        self, credited: CreditedEpisodes, fixed: FixedLogProbs, progress: Progress
    ) -> tuple[dict[str, float], Mapping[ActionKey, Floats], Ledger]:
        """Update the policies → metrics, log-probabilities under π_old by the action's key, and the credit log."""
        samples = credited.samples
        rates = {
            f"policies/{name}/learning_rate": optimizer.begin_step(progress.step - self.warmup)
            for name, optimizer in self.optimizers.items()
        }
        meter = Meter()
        update = Update(
            self.settings, self.objective, self.optimizers, self.packing, fixed, meter, self.seed,
            check_packing=(progress.step - self.warmup) % PACKING_CHECKS == 0,
            ranks=self.ranks,
            compared=Compared.of(credited.credits.comparisons, samples) if self.reference else None,
            reference=self.reference,
        )  # fmt: skip
        ratios = TeamRatios(self.schedule.ratio_limit)
        progress = progress._replace(advantages=advantage_sizes(samples, credited.raw))
        phases = list(self.schedule.plan(progress, self.trained, self.seed))
        budgets = shares(phases, {sample.action.policy for sample in samples}, self.settings.team_kl)
        after: dict[ActionKey, Floats] = {}
        for number, (phase, budget) in enumerate(zip(phases, budgets, strict=True)):
            update.run(phase, self._corrected(credited, phase, ratios), progress.step, budget)
            after |= self._scores_after(phase, samples, update, progress.step)
            if self.schedule.correction and number + 1 < len(phases):
                moved = [sample for sample in samples if sample.action.policy in phase.policies]
                ratios.add([sample.action for sample in moved], update.old, update.score_now(moved))
        measure_kl(meter, samples, update.old, after)
        self._measure_base_kl(meter, samples, fixed, update)
        sums = {"kl_stops": meter.total("kl_stops")}  # equal on every rank
        if self.settings.team_kl:
            sums["team_kl"] = meter.total("team_kl")
        meter = meter.of_all(self.ranks)
        metrics = rates | meter.means() | gradient_shares(meter, self.roles) | effective_sizes(meter, self.roles) | sums
        return metrics, update.old, update.ledger.of_all(self.ranks)

    def _scores_after(
        self, phase: UpdatePhase, samples: Sequence[Sample], update: Update, step: int
    ) -> Mapping[ActionKey, Floats]:
        """Return log-probabilities after a phase for some trained actions, packed like before the phase."""
        mine = [s for s in samples if s.action.policy in phase.policies and s.action.key in update.old]
        return score_actions(update.packing, drawn_of_each_agent(mine, self.seed, step), self.ranks)

    def _measure_base_kl(self, meter: Meter, samples: Sequence[Sample], fixed: FixedLogProbs, update: Update) -> None:
        """Measure the KL to the base before the step.

        All actions are used if their base scores are known, else a few actions of each agent.
        """
        chosen = samples if fixed.base else first_of_each_agent(samples, BASE_KL_ACTIONS)
        idle = [sample for sample in chosen if sample.action.key not in update.old]
        assert update.moved.isdisjoint(sample.action.policy for sample in idle), "what has moved was scored before"
        old = {**update.old, **score_actions(self.packing, idle, self.ranks)}
        measure_base_kl(meter, chosen, old, fixed.base or score_actions(self.base_packing, chosen, self.ranks))

    def _corrected(self, credited: CreditedEpisodes, phase: UpdatePhase, ratios: TeamRatios) -> Sequence[Sample]:
        """Return a phase's samples, corrected for the updates in earlier phases."""
        if self.schedule.correction == "product":
            return ratios.weigh(credited.samples)
        if self.schedule.correction == "preceding":
            inputs = credited.inputs
            traced = replace(inputs, traces=ratios.traces(inputs.actions))
            again, _ = self._samples(credited.episodes, self._assigned(traced))
            return ratios.join(again, 0.5 * phase.clip_scale * self.objective.clip_width)
        return credited.samples


def _reference(
    objective: object, optimizers: Mapping[str, PolicyOptimizer], models: Models, base_packing: Packing
) -> Reference:
    if not isinstance(objective, PairObjective):
        raise ValueError(
            f"algorithm.objective: {type(objective).__qualname__} says that it reads pairs, and has no pair_losses; "
            "derive it from marft.trainer.objectives.pairs.PairObjectivePart"
        )
    return Reference(objective.reference, objective.refresh, optimizers, models, base_packing)


def _shares(run: RunSettings, schedule: UpdateSchedule, models: Models) -> bool:
    """Return True if rows may share common prefixes.

    Sharing changes the last bits of a score, depending on the other rows. By default prefixes are therefore shared only
    if products are exact and all compared scores use the same packing.
    """
    if run.training.share_prefixes != "auto":
        return run.training.share_prefixes == "always"
    exact = not any(policy.backbone.wants_full_batches for policy in models.policies.values())
    return exact and run.algorithm.epochs == 1 and schedule.correction == ""
