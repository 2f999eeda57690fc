"""The learner: applies a credit, an objective and a schedule to a batch of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from marft.config.run import RunSettings
from marft.learning.batching import Denominators, Packing, make_samples
from marft.learning.critic import Critic
from marft.learning.interfaces import Credit, Floats, Objective, Progress, UpdateSchedule, split_rows
from marft.learning.measuring import advantage_metrics, gradient_shares, measure_base_kl, score
from marft.learning.metering import Meter
from marft.learning.optimizers import PolicyOptimizer
from marft.learning.update import Update
from marft.models.pool import Models
from marft.types import Episode, Sample, all_actions


class Learner:
    """The optimizers of all trained policies, and the critic.

    Raises:
        ValueError: the recipe trains no policy.
    """

    def __init__(self, run: RunSettings, models: Models) -> None:
        if not run.trained_policies:
            raise ValueError("policies: all are frozen, so there is nothing to train; set train = 'lora' or 'full'")
        self.settings, self.seed = run.algorithm, run.seed
        self.credit = cast("Credit", run.algorithm.credit)
        self.objective = cast("Objective", run.algorithm.objective)
        self.schedule = cast("UpdateSchedule", run.algorithm.schedule)
        self.roles = [agent.role for agent in run.agents]
        self.optimizers = {
            name: PolicyOptimizer(
                models.policies[name].parameters(), run.algorithm.optimizer, run.learning_rate(name), run.training.steps
            )
            for name in run.trained_policies
        }
        self.packing = Packing(
            backbones={name: policy.backbone for name, policy in models.policies.items()},
            adapters={name: policy.adapter for name, policy in models.policies.items()},
            temperatures={agent.role: agent.sampling.temperature for agent in run.agents},
            aggregation=run.algorithm.resolved_aggregation,
            level=run.algorithm.level,
            tokens_per_batch=run.training.tokens_per_micro_batch,
        )
        self.base_packing = replace(
            self.packing,
            backbones={name: policy.reference for name, policy in models.policies.items()},
            adapters=dict.fromkeys(models.policies),
        )
        self.critic = Critic(
            run.algorithm.critic,
            run.algorithm.level,
            self.base_packing.backbones,
            {name: policy.settings.model for name, policy in models.policies.items()},
            seed=run.seed,
            tokens_per_batch=run.training.tokens_per_micro_batch,
        )

    def learn(self, episodes: Sequence[Episode], progress: Progress) -> dict[str, float]:
        """One training step on scored episodes → metrics, team-wide and under ``agents/<role>/``."""
        values = self.critic.evaluate(episodes)
        credits = self.credit.assign(episodes, values, self.settings.level)
        samples, raw = make_samples(
            all_actions(episodes), credits, list(self.optimizers), self.settings.normalisation,
            self.settings.normalise_advantages,
        )  # fmt: skip
        metrics = advantage_metrics(samples, raw)
        warming_up = progress.step < self.settings.critic.warmup_steps
        if samples and not warming_up:
            metrics |= self._improve(samples, progress)
        targets = credits.monte_carlo if warming_up else credits.returns
        return metrics | self.critic.update(values, targets, progress.step)

    def _improve(self, samples: Sequence[Sample], progress: Progress) -> dict[str, float]:
        rates = {
            f"policies/{name}/learning_rate": optimizer.begin_step(progress.step)
            for name, optimizer in self.optimizers.items()
        }
        meter = Meter()
        meter.add("kl_stops", 0.0, 1.0)
        measure_base_kl(meter, samples, self.base_packing)
        old = self._score(samples) if self.settings.old_log_probs == "learner" else {}
        update = Update(
            self.settings, self.objective, self.optimizers, self.packing, old, meter, self.seed
        )  # fmt: skip
        for phase in self.schedule.plan(progress, tuple(self.optimizers)):
            update.run(phase, samples, progress.step)
        return rates | meter.means() | gradient_shares(meter, self.roles) | {"kl_stops": meter.total("kl_stops")}

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> dict[int, Floats]:
        """Log-probs of every sampled token under the policies as they are, by ``id`` of the action."""
        scored: dict[int, Floats] = {}
        for batch in self.packing.micro_batches(samples, Denominators.of(samples, pooled=False)):
            log_probs = score(batch).log_probs.double().cpu().numpy()
            sizes = [int(sample.action.sampled.sum()) for sample in batch.samples]
            for sample, part in zip(batch.samples, split_rows(log_probs, sizes), strict=True):
                scored[id(sample.action)] = part
        return scored
