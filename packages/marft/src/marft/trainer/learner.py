"""Learner: a training step on scored episodes, by a credit, a schedule of phases and an objective.

The training loop calls ``LocalLearner.learn`` → ``NonFiniteGuard.learn`` (reverts a step with a non-finite result) →
``Learner.learn``. With several ranks, ``DistributedLearner.learn`` and every rank's ``RankWorker.learn`` replace the
first. The path of a step, from :meth:`Learner.learn` to the optimizers::

    learner.py          score before the update ──▶ credit ──▶ update phase by phase ──▶ fit the critic ──▶ metrics
    scoring.py          log-probabilities of actions: one forward pass for all agents on a backbone
    critic.py           values of decisions, for a credit that reads them
    credit/             rewards, values and KL costs → advantages
    batching.py         actions and advantages → samples → minibatches → micro-batches (micro_batch.py)
    update_schedules.py order of phases, and corrections for earlier phases
    update.py           a phase: epochs of minibatches, forward and backward passes, optimizer steps
    objectives/         loss of each action or token; loss.py: its weights, and further terms
    trust_region.py     limits on the change of a phase
    optimizers.py       gradient clipping and AdamW
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from marft.agents.task_copies import copy_episode_task
from marft.common.errors import RunError, UserError
from marft.common.types import Action, ActionCredit, ActionKey, Episode, Sample
from marft.config.distillation import DistillationSettings
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats, flatten_actions
from marft.config.interfaces.objective import LOG_RATIO_LIMIT
from marft.config.interfaces.schedule import Progress, UpdatePhase, UpdateSchedule
from marft.config.run import RunSettings, check_trainable
from marft.models.dtensors import full_tensor
from marft.models.policy_registry import PolicyRegistry
from marft.rewards.shaping import have_equal_rewards, length_limits, rewards_for_credit, success_metrics
from marft.trainer.batching import Packing, build_sample, make_samples
from marft.trainer.critic import Critic, CriticBody
from marft.trainer.diagnostics import Diagnostics
from marft.trainer.distillation import Distillation
from marft.trainer.learner_backend import PlayAgain, refuse_new_episodes
from marft.trainer.learner_metrics import (
    CreditCallback,
    MetricAccumulator,
    advantage_metrics,
    advantage_sizes,
    compute_gradient_shares,
    compute_relative_ess,
    measure_base_kl,
    measure_kl,
    sample_per_agent,
    select_first_per_agent,
)
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.non_finite_guard import find_non_finite
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors, restore_optimizer, select_prefix
from marft.trainer.preferences import PreferenceBatch, ReferencePolicy
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks
from marft.trainer.scoring import score_actions
from marft.trainer.trust_region import split_budget
from marft.trainer.update import PACKING_CHECK_INTERVAL, PolicyUpdater, UpdateSetup
from marft.trainer.update_schedules import TeamRatios

StateReader = Callable[[], dict[str, Tensor]]
TRACES = "traces"  # stream of episodes imported from traces, without sampled tokens


@dataclass(frozen=True, slots=True, eq=False)
class CreditedBatch:
    """Credited batch before any update: credit for every decision, and the samples to train on."""

    episodes: Sequence[Episode]  # as played
    inputs: CreditInputs  # episodes with the rewards for credit assignment
    credit: CreditOutput
    samples: Sequence[Sample]
    unnormalized: Sequence[Floats]  # advantages of the samples before normalization


@dataclass(frozen=True, slots=True, eq=False)
class UpdateLog:
    """Measurements during the updates on one batch of episodes.

    Args:
        old_log_probs: log-probabilities under the policies before the updates, by the action's key.
        own_rank: measurements of this rank.
        merged: measurements of all ranks.
    """

    old_log_probs: Mapping[ActionKey, Floats]
    own_rank: MetricAccumulator
    merged: MetricAccumulator


class Learner:
    """Reward learner: an optimizer per trained policy, and the critic.

    Args:
        run: recipe of the run.
        models: models of the run.
        ranks: ranks that train together; each gets the same episodes.

    Raises:
        UserError: the recipe trains no policy, or a pair objective has no ``pair_losses``.
    """

    def __init__(self, run: RunSettings, models: PolicyRegistry, ranks: Ranks = SINGLE_RANK) -> None:
        self.ranks = ranks
        self.read_on_all_ranks: Callable[[StateReader], dict[str, Tensor]] = lambda read: read()
        check_trainable(run)
        self.settings, self.seed = run.algorithm, run.seed
        self.credit = run.algorithm.credit.model_copy(deep=True)  # own copy of their state
        self.objective = run.algorithm.objective
        self.schedule = run.algorithm.schedule.model_copy(deep=True)
        self._fresh = self.state_dict()
        self.roles = [agent.role for agent in run.agents]
        self.longest = length_limits(run)
        self.warmup = run.algorithm.critic.warmup_steps if run.algorithm.critic.kind != "none" else 0
        steps = run.training.steps - self.warmup  # steps with policy updates, at least one
        self.trained = run.trained_policies
        offload = run.training.offload_optimizer
        self.optimizers = {
            name: PolicyOptimizer.from_policy(
                models.policies[name], run.algorithm.optimizer, run.learning_rate(name), steps, offload
            )
            for name in self.trained
            if models.policies[name].backbone.has_weights
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
            share=_may_share_prefixes(run, self.schedule, models),
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
            self.reference = ReferencePolicy(self.objective, self.optimizers, models, self.base_packing)
        teaching = run.section(DistillationSettings)
        self.distillation = Distillation(teaching, run, models, self.packing) if teaching else None
        self.probes = run.guards.probes
        self.diagnostics = Diagnostics(run, models, self.packing, ranks)
        self.critic = None
        if run.algorithm.critic.kind != "none":
            self.critic = Critic(
                run.algorithm.critic,
                run.algorithm.level,
                {name: CriticBody(policy.base, policy.reader) for name, policy in models.policies.items()},
                [(agent.role, agent.policy) for agent in run.agents],
                seed=run.seed,
                tokens_per_batch=run.training.tokens_per_micro_batch,
                ranks=ranks,
            )

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        on_credit: CreditCallback = lambda _: None,
        play_again: PlayAgain = refuse_new_episodes,
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics, for the team and under ``agents/<role>/``.

        Args:
            episodes: scored episodes.
            progress: progress of training.
            on_credit: callback for the credit of each action; called once for each batch of episodes.
            play_again: function that plays the step's tasks again with the policies as updated so far → scored
                episodes; called before each phase of the schedule that asks for new episodes.

        Raises:
            UserError: the episodes come from traces.
            RunError: the credit returned a non-finite advantage.
        """
        refuse_traces(episodes)
        if self.reference:
            self.reference.begin_step(progress.step)
        is_warmup = progress.step < self.warmup
        fixed = self.score_before_update(episodes, for_credit_alone=is_warmup)
        batch, taught = self._add_teachers(self.assign_credit(episodes, fixed), progress.step)
        metrics = self.diagnostics.measure(episodes, progress.step) | taught
        metrics |= {**advantage_metrics(batch.samples, batch.unnormalized), **batch.credit.metrics}
        if self.settings.nll_coefficient:
            metrics |= success_metrics(episodes)
        phases, later_rounds, rates = None, [], dict[str, float]()
        if batch.samples and not is_warmup:
            rates = self._begin_step(progress.step)
            phases, *later_rounds = self._plan(batch, progress)
        log, critic_metrics = self._learn_batch(batch, fixed, phases, progress.step, on_credit)
        logs = [log]
        for phases in later_rounds:
            new_episodes = play_again()
            fixed = self.score_before_update(new_episodes)
            batch, _ = self._add_teachers(self.assign_credit(new_episodes, fixed), progress.step)
            log, critic_metrics = self._learn_batch(batch, fixed, phases, progress.step, on_credit)
            logs.append(log)
        return metrics | rates | self._update_metrics([log for log in logs if log]) | critic_metrics

    def _add_teachers(self, batch: CreditedBatch, step: int) -> tuple[CreditedBatch, dict[str, float]]:
        """Add the teachers' advantages to a batch → the batch, and metrics; unchanged without ``[distillation]``."""
        if self.distillation is None:
            return batch, {}
        samples, metrics = self.distillation.add_advantages(batch.samples, step, self.ranks)
        return replace(batch, samples=samples, unnormalized=[sample.advantages for sample in samples]), metrics

    def _learn_batch(
        self,
        batch: CreditedBatch,
        fixed: FixedLogProbs,
        phases: Sequence[tuple[UpdatePhase, float]] | None,
        step: int,
        on_credit: CreditCallback,
    ) -> tuple[UpdateLog | None, dict[str, float]]:
        """Update the policies, report the credit, and fit the critic → measurements of the update, critic metrics.

        Args:
            batch: credited batch.
            fixed: log-probabilities scored before the update.
            phases: phases of the update, each with its KL budget; None for a step without policy updates.
            step: index of the training step.
            on_credit: callback for the credit of each action.
        """
        log = self._update_policies(batch, fixed, phases, step) if phases is not None and batch.samples else None
        on_credit(_build_records(batch, log))
        values = batch.inputs.values
        if self.critic and values:
            targets = batch.credit.monte_carlo if step < self.warmup else batch.credit.returns
            return log, self.critic.update(values, targets, step)
        return log, {}

    def score_before_update(self, episodes: Sequence[Episode], for_credit_alone: bool = False) -> FixedLogProbs:
        """Return the log-probabilities of trained policies' actions before the update, if the algorithm uses them.

        Args:
            episodes: scored episodes.
            for_credit_alone: True to skip scores that only a policy update needs.
        """
        kl = self.settings.kl
        if not kl.coefficient or (for_credit_alone and kl.apply_to != "reward"):
            return FixedLogProbs()
        scored_actions = [
            build_sample(action, self.settings.level)
            for action in flatten_actions(episodes)
            if action.policy in self.trained
        ]
        return FixedLogProbs(
            old=score_actions(self.packing, scored_actions, self.ranks) if kl.apply_to == "reward" else {},
            base=score_actions(self.base_packing, scored_actions, self.ranks),
            exact=self.packing.is_exact(scored_actions),
        )

    def assign_credit(self, episodes: Sequence[Episode], fixed: FixedLogProbs) -> CreditedBatch:
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
            rewarded, self.settings.level, values, self._compute_costs(episodes, fixed), trained=set(self.trained)
        )
        credit = self._assign(inputs)
        for action, advantages in zip(inputs.actions, credit.advantages, strict=True):
            if not np.isfinite(advantages).all():
                name = self.settings.credit.name
                raise RunError(f"credit {name!r} gave {action.id} of {action.key.task!r} an advantage of {advantages}")
        return CreditedBatch(episodes, inputs, credit, *self._make_samples(episodes, credit))

    def _assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the credit; with ``equal_rewards = "zero"``, advantages are 0 for equal rewards.

        The critic's targets stay unchanged.
        """
        own_inputs = replace(inputs, episodes=[copy_episode_task(episode) for episode in inputs.episodes])
        credit = self.credit.assign(own_inputs)
        if self.settings.equal_rewards == "zero" and have_equal_rewards(inputs.episodes):
            return replace(credit, advantages=[np.zeros_like(row) for row in credit.advantages])
        return credit

    def _compute_costs(self, episodes: Sequence[Episode], fixed: FixedLogProbs) -> list[Floats]:
        """Return the KL cost of each decision: coefficient · (log π − log π_base); 0 for frozen policies."""
        kl = self.settings.kl
        if not fixed.base or kl.apply_to != "reward":
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

    def _make_samples(self, episodes: Sequence[Episode], credit: CreditOutput) -> tuple[list[Sample], list[Floats]]:
        settings = self.settings
        return make_samples(episodes, credit, self.trained, settings.normalization, settings.normalize_advantages)

    def update_setup(self) -> UpdateSetup:
        """Return the parts that updates use."""
        return UpdateSetup(
            self.settings, self.objective, self.optimizers, self.packing, self.seed, self.ranks, self.reference
        )

    def _plan(self, batch: CreditedBatch, progress: Progress) -> list[list[tuple[UpdatePhase, float]]]:
        """Return the step's phases, each with its share of the KL budget, grouped by the episodes they learn from."""
        progress = progress._replace(advantages=advantage_sizes(batch.samples, batch.unnormalized))
        phases = list(self.schedule.plan_phases(progress, self.trained, self.seed))
        budgets = split_budget(phases, {sample.action.policy for sample in batch.samples}, self.settings.team_kl)
        rounds: list[list[tuple[UpdatePhase, float]]] = [[]]
        for phase, budget in zip(phases, budgets, strict=True):
            if phase.new_episodes and rounds[-1]:
                rounds.append([])
            rounds[-1].append((phase, budget))
        return rounds

    def _begin_step(self, step: int) -> dict[str, float]:
        """Set the learning rates of a step → metrics."""
        return {
            f"policies/{name}/learning_rate": optimizer.begin_step(step - self.warmup)
            for name, optimizer in self.optimizers.items()
        }

    def _update_policies(
        self, batch: CreditedBatch, fixed: FixedLogProbs, phases: Sequence[tuple[UpdatePhase, float]], step: int
    ) -> UpdateLog:
        """Update the policies phase by phase on one batch of episodes."""
        samples = batch.samples
        update = PolicyUpdater(
            self.update_setup(),
            fixed,
            PreferenceBatch.from_samples(batch.credit.comparisons, samples) if self.reference else None,
            check_packing=(step - self.warmup) % PACKING_CHECK_INTERVAL == 0,
        )
        ratios = TeamRatios(self.schedule.ratio_limit)
        after: dict[ActionKey, Floats] = {}
        for number, (phase, budget) in enumerate(phases):
            update.run(phase, self._correct_samples(batch, phase, ratios), step, budget)
            after |= self._score_after(phase, samples, update, step)
            if self.schedule.correction and number + 1 < len(phases):
                phase_samples = [sample for sample in samples if sample.action.policy in phase.policies]
                ratios.add([sample.action for sample in phase_samples], update.old, update.score_current(phase_samples))
        measure_kl(update.accumulator, samples, update.old, after)
        self._measure_base_kl(samples, fixed, update)
        return UpdateLog(update.old, update.accumulator, update.accumulator.merge_ranks(self.ranks))

    def _update_metrics(self, logs: Sequence[UpdateLog]) -> dict[str, float]:
        """Return the metrics of all updates of a step; {} without updates."""
        if not logs:
            return {}
        names = ("kl_stops", "team_kl") if self.settings.team_kl else ("kl_stops",)
        sums = {name: sum(log.own_rank.total(name) for log in logs) for name in names}  # equal on every rank
        accumulator = logs[0].merged
        for log in logs[1:]:
            accumulator.merge(log.merged)
        return (
            accumulator.means()
            | compute_gradient_shares(accumulator, self.roles)
            | compute_relative_ess(accumulator, self.roles)
            | sums
        )

    def _correct_samples(self, batch: CreditedBatch, phase: UpdatePhase, ratios: TeamRatios) -> Sequence[Sample]:
        """Return a phase's samples, corrected for the updates in earlier phases."""
        if self.schedule.correction == "product":
            return ratios.scale_advantages(batch.samples)
        if self.schedule.correction == "preceding":
            inputs = batch.inputs
            traced = replace(inputs, traces=ratios.traces(inputs.actions))
            corrected, _ = self._make_samples(batch.episodes, self._assign(traced))
            return ratios.scale_ratios(corrected, 0.5 * phase.clip_scale * self.objective.clip_width)
        return batch.samples

    def _score_after(
        self, phase: UpdatePhase, samples: Sequence[Sample], update: PolicyUpdater, step: int
    ) -> Mapping[ActionKey, Floats]:
        """Return log-probabilities after a phase for some trained actions, packed like before the phase."""
        phase_samples = [s for s in samples if s.action.policy in phase.policies and s.action.key in update.old]
        return score_actions(update.packing, sample_per_agent(phase_samples, self.probes, self.seed, step), self.ranks)

    def _measure_base_kl(self, samples: Sequence[Sample], fixed: FixedLogProbs, update: PolicyUpdater) -> None:
        """Measure the KL to the base before the step.

        All actions are used if their base scores are known, else a few actions of each agent.
        """
        chosen = samples if fixed.base else select_first_per_agent(samples, self.probes)
        idle = [sample for sample in chosen if sample.action.key not in update.old]
        assert update.updated_policies.isdisjoint(sample.action.policy for sample in idle), (
            "what has moved was scored before"
        )
        old = {**update.old, **score_actions(self.packing, idle, self.ranks)}
        base = fixed.base or score_actions(self.base_packing, chosen, self.ranks)
        measure_base_kl(update.accumulator, chosen, old, base)

    # state

    def set_ranks(self, ranks: Ranks) -> None:
        """Replace the rank group."""
        self.ranks = self.diagnostics.ranks = ranks
        if self.critic:
            self.critic.ranks = ranks

    def not_finite(self) -> list[str]:
        """Return the names for parts with a non-finite number."""
        return find_non_finite(self)

    def state_dict(self) -> dict[str, float]:
        """Return the state of credit and schedule."""
        return {
            f"{part}/{name}": value
            for part, stateful in self._stateful().items()
            for name, value in stateful.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of credit and schedule from :meth:`state_dict`.

        A part without entries is reset to its initial state.
        """
        for part, stateful in self._stateful().items():
            stateful.load_state_dict(select_prefix(state, part) or select_prefix(self._fresh, part))

    def _stateful(self) -> dict[str, Credit | UpdateSchedule]:
        return {"credit": self.credit, "schedule": self.schedule}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer state and the reference parameters, unsharded.

        Names are ``critic/<parameter>.exp_avg``, ``policies/<name>/<parameter>.step``, …, and
        ``reference/<policy>/<parameter>``.

        With sharded ranks, all ranks must read the state together. On the first rank :attr:`read_on_all_ranks` makes
        them do so.
        """
        return self.read_on_all_ranks(self._read_optimizer_state)

    def _read_optimizer_state(self) -> dict[str, Tensor]:
        parts = {f"policies/{name}": optimizer.state() for name, optimizer in self.optimizers.items()}
        if self.critic:
            parts = {"critic": optimizer_tensors(self.critic.optimizer, self.critic.parameters())} | parts
        if self.reference:
            parts["reference"] = self.reference.state()
        return {
            f"{part}/{name}": full_tensor(tensor) for part, state in parts.items() for name, tensor in state.items()
        }

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state from :meth:`optimizer_state`."""
        if self.critic:
            restore_optimizer(self.critic.optimizer, self.critic.parameters(), select_prefix(state, "critic"))
        for name, optimizer in self.optimizers.items():
            optimizer.load_state(select_prefix(state, f"policies/{name}"))
        if self.reference:
            self.reference.load_state(select_prefix(state, "reference"))


def refuse_traces(episodes: Sequence[Episode]) -> None:
    """Reject episodes from traces, because policy ratios need log-probabilities at sampling.

    Raises:
        UserError: an episode comes from traces.
    """
    if any(episode.stream == TRACES for episode in episodes):
        raise UserError(
            "episodes from traces cannot be trained with ratios of policies: these need the ids that were sampled and "
            "their log-probabilities, and a trace has text. Learn from them by imitation (marft sft), or grade them "
            "(marft score)"
        )


def _may_share_prefixes(run: RunSettings, schedule: UpdateSchedule, models: PolicyRegistry) -> bool:
    """Return True if rows may share common prefixes.

    Sharing changes the last bits of a score, depending on the other rows. By default prefixes are therefore shared only
    if products are exact and all compared scores use the same packing.
    """
    if run.training.share_prefixes != "auto":
        return run.training.share_prefixes == "always"
    exact = not any(policy.backbone.needs_fixed_size for policy in models.policies.values())
    return exact and run.algorithm.epochs == 1 and schedule.correction == ""


def _build_records(batch: CreditedBatch, log: UpdateLog | None) -> list[ActionCredit]:
    """Return one credit record per action, in the order of the episodes.

    Args:
        batch: credited batch.
        log: measurements of the updates; None without updates.
    """
    credit, values, records = batch.credit, batch.inputs.values, []
    # by the action's id(), because forks may share an action's key
    used_advantages = {id(sample.action): sample.advantages for sample in batch.samples} if log else {}
    old, update = (log.old_log_probs, log.merged) if log else ({}, MetricAccumulator())
    rows = [(episode, action) for episode in batch.episodes for action in episode.actions]
    for number, (episode, action) in enumerate(rows):
        advantages = used_advantages.get(id(action))
        key = action.key if advantages is not None else None
        scored = old.get(key) if key else None
        records.append(
            ActionCredit(
                episode=episode,
                action=action,
                group=credit.groups[number] if credit.groups else "",
                raw_advantages=credit.advantages[number],
                advantages=advantages,
                values=values.actions[number] if values else None,
                entropy=update.entropies.get(key) if key else None,
                log_prob_diff=None if scored is None else scored - action.log_probs.astype(np.float64),
                gradient_size=update.gradients.get(key) if key else None,
            )
        )
    return records
