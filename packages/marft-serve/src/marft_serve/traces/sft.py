"""Supervised fine-tuning (SFT): mean negative log-likelihood of recorded turns, for each policy.

    L_π = − (1 / N_π) Σ_t log π(y_t | x, y_<t)

The sum covers the N_π trained tokens of a policy in a step, at temperature 1. Token weights are fixed before the split
into micro-batches, so no split changes a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marft.common.types import Sample
from marft.config.algorithm import OptimizerSettings
from marft.config.interfaces.credit import Floats
from marft.config.run import RunSettings, check_trainable
from marft.models.devices import DeferredReads
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts, Packing
from marft.trainer.micro_batch import MicroBatch
from marft.trainer.non_finite_guard import find_non_finite
from marft.trainer.optimizers import PolicyOptimizer, select_prefix, step_optimizers
from marft.trainer.scoring import score_batch


class SftLoss(NamedTuple):
    """Sums of negative log-likelihood in nats, and numbers of decisions, by agent."""

    losses: Mapping[str, float]
    tokens: Mapping[str, int]

    def mean(self, agent: str = "") -> float:
        """Return the mean loss in nats per token, for an agent or for all; NaN without tokens."""
        agents = [agent] if agent else list(self.tokens)
        count = sum(self.tokens.get(name, 0) for name in agents)
        return math.fsum(self.losses.get(name, 0.0) for name in agents) / count if count else math.nan


class SftLearner:
    """SFT learner with an optimizer per trained policy, and the imitation loss.

    Args:
        run: recipe of the run.
        models: models of the run.
        steps: total steps of the warm start, for the learning-rate schedule.
        settings: optimizer and learning rate of every policy.

    Raises:
        ValueError: the recipe trains no policy.
    """

    critic = None  # imitation has no critic

    def __init__(self, run: RunSettings, models: PolicyRegistry, steps: int, settings: OptimizerSettings) -> None:
        check_trainable(run)
        self.optimizers = {
            name: PolicyOptimizer.from_policy(models.policies[name], settings, settings.learning_rate, steps)
            for name in run.trained_policies
        }
        self.packing = Packing(
            backbones={name: policy.backbone for name, policy in models.policies.items()},
            adapters={name: policy.adapter for name, policy in models.policies.items()},
            temperatures={agent.role: 1.0 for agent in run.agents},
            aggregation="token-mean",
            level="token",
            tokens_per_batch=run.training.tokens_per_micro_batch,
            constant_length=1,
            teammate_text=False,
            share=run.training.share_prefixes != "never",
        )

    def learn(self, samples: Sequence[Sample], step: int) -> tuple[SftLoss, dict[str, float]]:
        """Run one step on recorded turns → loss before the step, metrics.

        A policy without a turn in ``samples`` stays unchanged.
        """
        policies = sorted({sample.action.policy for sample in samples})
        rates = {f"policies/{name}/learning_rate": self.optimizers[name].begin_step(step) for name in policies}
        for name in policies:
            self.optimizers[name].zero_grad()
        batch_counts = BatchCounts.from_samples(samples, pooled=False)
        losses: dict[str, float] = {}
        deferred = DeferredReads()
        for batch in self.packing.micro_batches(samples, batch_counts):
            log_probs = score_batch(batch).log_probs
            (-(log_probs * batch.token_weights).sum()).backward()
            deferred.add(log_probs, partial(_add_losses, losses, batch))
        deferred.read_pending()
        norms = dict(zip(policies, step_optimizers([self.optimizers[name] for name in policies]), strict=True))
        metrics = {f"policies/{name}/gradient_norm": norm for name, norm in norms.items()}
        skipped = [float(not math.isfinite(norm)) for norm in norms.values()]
        metrics |= {"gradient_norm": float(np.mean(list(norms.values()))), "skipped_updates": float(np.mean(skipped))}
        return SftLoss(losses, _count_tokens(samples)), rates | metrics

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample]) -> SftLoss:
        """Return the loss of turns under the current policies."""
        losses: dict[str, float] = {}
        deferred = DeferredReads()
        for batch in (
            self.packing.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False)) if samples else ()
        ):
            deferred.add(score_batch(batch).log_probs, partial(_add_losses, losses, batch))
        deferred.read_pending()
        return SftLoss(losses, _count_tokens(samples))

    def not_finite(self) -> list[str]:
        """Return the names of parts with a non-finite number."""
        return find_non_finite(self)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer state as ``policies/<name>/<parameter>.step``, …"""
        return {
            f"policies/{name}/{key}": tensor
            for name, optimizer in self.optimizers.items()
            for key, tensor in optimizer.state().items()
        }

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state from :meth:`optimizer_state`."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state(select_prefix(state, f"policies/{name}"))

    def state_dict(self) -> dict[str, float]:
        """Return an empty dictionary, because imitation has no other state."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Check for an empty state."""
        assert not state, "nothing is remembered"


def _count_tokens(samples: Sequence[Sample]) -> dict[str, int]:
    """Count the trained decisions of each agent."""
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.action.agent] = counts.get(sample.action.agent, 0) + sample.action.num_decisions
    return counts


def _add_losses(losses: dict[str, float], batch: MicroBatch, values: Floats) -> None:
    """Add a micro-batch's negative log-likelihoods [T] to the sums of its agents, in float64."""
    for number, agent in enumerate(batch.agent_names):
        losses[agent] = losses.get(agent, 0.0) - float(values[batch.agents == number].sum())
