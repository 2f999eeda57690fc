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

from marft.common.types import Action, Episode, Sample
from marft.config.algorithm import OptimizerSettings
from marft.config.run import RunSettings, refuse_nothing_to_train
from marft.models.devices import Awaited
from marft.models.pool import Models
from marft.trainer.batching import Denominators, MicroBatch, Packing
from marft.trainer.interfaces import Floats
from marft.trainer.keeping import not_finite
from marft.trainer.optimizers import PolicyOptimizer, step_all, under
from marft.trainer.scoring import score

TRACES = "traces"  # stream of episodes imported from traces, without sampled tokens


def refuse_traces(episodes: Sequence[Episode]) -> None:
    """Reject episodes from traces, because policy ratios need log-probabilities at sampling.

    Raises:
        ValueError: an episode comes from traces.
    """
    if any(episode.stream == TRACES for episode in episodes):
        raise ValueError(
            "episodes from traces cannot be trained with ratios of policies: these need the ids that were sampled and "
            "their log-probabilities, and a trace has text. Learn from them by imitation (marft sft), or grade them "
            "(marft score)"
        )


def as_sample(action: Action) -> Sample:
    """Return a sample for imitation, without an advantage."""
    return Sample(action, 1.0, np.zeros(1))


class Imitation(NamedTuple):
    """Sums of negative log-likelihood in nats, and numbers of decisions, by agent."""

    losses: Mapping[str, float]
    tokens: Mapping[str, int]

    def mean(self, agent: str = "") -> float:
        """Return the mean loss in nats per token, for an agent or for all; NaN without tokens."""
        agents = [agent] if agent else list(self.tokens)
        count = sum(self.tokens.get(one, 0) for one in agents)
        return math.fsum(self.losses.get(one, 0.0) for one in agents) / count if count else math.nan


class Supervisor:
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

    def __init__(self, run: RunSettings, models: Models, steps: int, settings: OptimizerSettings) -> None:
        refuse_nothing_to_train(run)
        self.optimizers = {
            name: PolicyOptimizer.of(models.policies[name], settings, settings.learning_rate, steps)
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

    def learn(self, samples: Sequence[Sample], step: int) -> tuple[Imitation, dict[str, float]]:
        """Run one step on recorded turns → loss before the step, metrics.

        A policy without a turn in ``samples`` stays unchanged.
        """
        policies = sorted({sample.action.policy for sample in samples})
        rates = {f"policies/{name}/learning_rate": self.optimizers[name].begin_step(step) for name in policies}
        for name in policies:
            self.optimizers[name].zero_grad()
        denominators = Denominators.of(samples, pooled=False)
        losses: dict[str, float] = {}
        awaited = Awaited()
        for batch in self.packing.micro_batches(samples, denominators):
            log_probs = score(batch).log_probs
            (-(log_probs * batch.token_weights).sum()).backward()
            awaited.add(log_probs, partial(_add, losses, batch))
        awaited.read()
        norms = dict(zip(policies, step_all([self.optimizers[name] for name in policies]), strict=True))
        metrics = {f"policies/{name}/gradient_norm": norm for name, norm in norms.items()}
        skipped = [float(not math.isfinite(norm)) for norm in norms.values()]
        metrics |= {"gradient_norm": float(np.mean(list(norms.values()))), "skipped_updates": float(np.mean(skipped))}
        return Imitation(losses, _tokens(samples)), rates | metrics

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample]) -> Imitation:
        """Return the loss of turns under the current policies."""
        losses: dict[str, float] = {}
        awaited = Awaited()
        for batch in self.packing.micro_batches(samples, Denominators.of(samples, pooled=False)) if samples else ():
            awaited.add(score(batch).log_probs, partial(_add, losses, batch))
        awaited.read()
        return Imitation(losses, _tokens(samples))

    def not_finite(self) -> list[str]:
        """Return the names of parts with a non-finite number."""
        return not_finite(self)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer state as ``policies/<name>/<parameter>.step``, …"""
        return {
            f"policies/{name}/{key}": tensor
            for name, it in self.optimizers.items()
            for key, tensor in it.state().items()
        }

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state from :meth:`optimizer_state`."""
        for name, it in self.optimizers.items():
            it.load_state(under(state, f"policies/{name}"))

    def state_dict(self) -> dict[str, float]:
        """Return an empty dictionary, because imitation has no other state."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Check for an empty state."""
        assert not state, "nothing is remembered"


def _tokens(samples: Sequence[Sample]) -> dict[str, int]:
    """Count the trained decisions of each agent."""
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.action.agent] = counts.get(sample.action.agent, 0) + sample.action.decisions
    return counts


def _add(losses: dict[str, float], batch: MicroBatch, values: Floats) -> None:
    """Add a micro-batch's negative log-likelihoods [T] to the sums of its agents, in float64."""
    for number, agent in enumerate(batch.agent_names):
        losses[agent] = losses.get(agent, 0.0) - float(values[batch.agents == number].sum())
