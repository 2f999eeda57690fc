"""Learning by imitation: the mean negative log-likelihood of recorded turns, for each policy (SFT).

    L_π = − (1 / N_π) Σ_t log π(y_t | x, y_<t)

over the N_π trained tokens of a policy in a step, at temperature 1. Its weights are fixed before anything is cut into
micro-batches, so no split changes a gradient.
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

TRACES = "traces"  # the stream of episodes whose tokens nobody sampled


def refuse_traces(episodes: Sequence[Episode]) -> None:
    """
    Raises:
        ValueError: an episode was told from traces: ratios need what its tokens were sampled with.
    """
    if any(episode.stream == TRACES for episode in episodes):
        raise ValueError(
            "episodes from traces cannot be trained with ratios of policies: these need the ids that were sampled and "
            "their log-probabilities, and a trace has text. Learn from them by imitation (marft sft), or grade them "
            "(marft score)"
        )


def as_sample(action: Action) -> Sample:
    """An action to be imitated: it has no advantage."""
    return Sample(action, 1.0, np.zeros(1))


class Imitation(NamedTuple):
    """What was trained or measured: negative log-likelihoods summed, and how many decisions, of each agent."""

    losses: Mapping[str, float]
    tokens: Mapping[str, int]

    def mean(self, agent: str = "") -> float:
        """Nats a token, of an agent or of all; NaN where there is none."""
        agents = [agent] if agent else list(self.tokens)
        count = sum(self.tokens.get(one, 0) for one in agents)
        return math.fsum(self.losses.get(one, 0.0) for one in agents) / count if count else math.nan


class Supervisor:
    """The optimizers of all trained policies, and the loss that moves them.

    Args:
        steps: of the whole warm start, over which the learning rate goes down.
        settings: optimizer and learning rate of every policy.

    Raises:
        ValueError: the recipe trains no policy.
    """

    critic = None  # it judges nothing

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
        """One step on recorded turns → their loss before it, and metrics. A policy without a turn among them stays."""
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
        """The loss of turns under the policies as they are."""
        losses: dict[str, float] = {}
        awaited = Awaited()
        for batch in self.packing.micro_batches(samples, Denominators.of(samples, pooled=False)) if samples else ():
            awaited.add(score(batch).log_probs, partial(_add, losses, batch))
        awaited.read()
        return Imitation(losses, _tokens(samples))

    def not_finite(self) -> list[str]:
        """Return the parts that hold a number that is not finite, by name."""
        return not_finite(self)

    def optimizer_state(self) -> dict[str, Tensor]:
        """What the optimizers remember: ``policies/<name>/<parameter>.step``, …"""
        return {
            f"policies/{name}/{key}": tensor
            for name, it in self.optimizers.items()
            for key, tensor in it.state().items()
        }

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Undo :meth:`optimizer_state`."""
        for name, it in self.optimizers.items():
            it.load_state(under(state, f"policies/{name}"))

    def state_dict(self) -> dict[str, float]:
        """Nothing more is remembered from step to step."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Undo :meth:`state_dict`."""
        assert not state, "nothing is remembered"


def _tokens(samples: Sequence[Sample]) -> dict[str, int]:
    """Trained decisions of each agent."""
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.action.agent] = counts.get(sample.action.agent, 0) + sample.action.decisions
    return counts


def _add(losses: dict[str, float], batch: MicroBatch, values: Floats) -> None:
    """Add a micro-batch's negative log-likelihoods [T] to those of its agents, in float64."""
    for number, agent in enumerate(batch.agent_names):
        losses[agent] = losses.get(agent, 0.0) - float(values[batch.agents == number].sum())
