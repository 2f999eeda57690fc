"""Metrics for a training step, by team and agent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.types import ActionKey, Sample
from marft.models.devices import DeferredReads
from marft.trainer.batching import MicroBatch
from marft.trainer.interfaces import KL_ACTIONS, KL_TOKENS, Floats
from marft.trainer.metric_accumulator import MetricAccumulator
from marft.trainer.scoring import k3_estimate

ESS = ("ess/weights", "ess/squares", "ess/units")  # sums of w, w², 1
BASE_KL_ACTIONS = 4  # actions per agent for the KL to the untuned base


def measure_tokens(
    deferred: DeferredReads, accumulator: MetricAccumulator, batch: MicroBatch, **values_T: Tensor
) -> None:
    """Add means over decisions, for the team and by agent, after the values are read."""
    for metric, tensor in values_T.items():
        deferred.add(tensor, partial(_add_means, accumulator, metric, batch.agents, batch.agent_names))


def measure_units(
    deferred: DeferredReads, accumulator: MetricAccumulator, batch: MicroBatch, **values_U: Tensor
) -> None:
    """Add means over units (actions or tokens), for the team and by agent, after the values are read."""
    for metric, tensor in values_U.items():
        deferred.add(tensor, partial(_add_means, accumulator, metric, batch.unit_agents(), batch.agent_names))


def measure_mismatch(deferred: DeferredReads, accumulator: MetricAccumulator, batch: MicroBatch, old_T: Tensor) -> None:
    """Add the mean and maximum difference between the learner's and the engine's log-probabilities.

    Both use the same weights; the unit is nats.
    """

    def add(sizes: Floats) -> None:
        _add_means(accumulator, "log_prob_difference", batch.agents, batch.agent_names, sizes)
        accumulator.update_max("log_prob_difference_max", float(sizes.max()))
        for index, name in enumerate(batch.agent_names):
            accumulator.update_max(f"agents/{name}/log_prob_difference_max", float(sizes[batch.agents == index].max()))

    deferred.add((old_T - batch.engine_log_probs).abs(), add)


def measure_gradient_share(
    deferred: DeferredReads, accumulator: MetricAccumulator, batch: MicroBatch, gradient_T: Tensor
) -> None:
    """Add |∂loss/∂log π| by agent; :func:`compute_gradient_shares` computes shares from the sums."""

    def add(sizes: Floats) -> None:
        by_agent = np.bincount(batch.agents, sizes, len(batch.agent_names))
        for name, size in zip(batch.agent_names, by_agent, strict=True):
            accumulator.add(f"agents/{name}/gradient_share", float(size), 0.0)

    deferred.add(gradient_T.abs(), add)


def compute_gradient_shares(accumulator: MetricAccumulator, agents: Sequence[str]) -> dict[str, float]:
    """Return each agent's share of the total |∂loss/∂log π|; NaN without gradient."""
    sizes = {name: accumulator.total(f"agents/{name}/gradient_share") for name in agents}
    total = sum(sizes.values())
    return {f"agents/{name}/gradient_share": size / total if total else math.nan for name, size in sizes.items()}


def measure_weights(
    deferred: DeferredReads, accumulator: MetricAccumulator, batch: MicroBatch, weights_U: Tensor
) -> None:
    """Add sampler correction weights; :func:`compute_relative_ess` computes effective sample sizes."""

    def add(weights: Floats) -> None:
        agents = batch.unit_agents()
        for index, name in enumerate(batch.agent_names):
            agent_weights = weights[agents == index]
            for part, total in zip(
                ESS, (agent_weights.sum(), np.square(agent_weights).sum(), len(agent_weights)), strict=True
            ):
                accumulator.add(f"agents/{name}/{part}", float(total), 0.0)

    deferred.add(weights_U, add)


def compute_relative_ess(accumulator: MetricAccumulator, agents: Sequence[str]) -> dict[str, float]:
    """Return the relative effective sample size (Σw)² / (N Σw²), for the team and each agent.

    Agents without any weight are omitted.
    """
    sums_by_agent = {name: np.array([accumulator.total(f"agents/{name}/{part}") for part in ESS]) for name in agents}
    sums = {f"agents/{name}/": agent_sums for name, agent_sums in sums_by_agent.items()} | {
        "": sum(sums_by_agent.values(), np.zeros(3))
    }
    return {f"{scope}ess": float(w * w / (n * squares)) for scope, (w, squares, n) in sums.items() if squares}


def advantage_metrics(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the fraction of trained decisions with advantage exactly 0 before normalization.

    Such decisions do not contribute to learning.
    """
    flat = np.concatenate(raw) if raw else np.empty(0)
    metrics = {"zero_advantage_fraction": float(np.mean(flat == 0.0)) if len(flat) else math.nan}
    for name in sorted({sample.action.agent for sample in samples}):
        agent_advantages = np.concatenate([a for s, a in zip(samples, raw, strict=True) if s.action.agent == name])
        metrics[f"agents/{name}/zero_advantage_fraction"] = float(np.mean(agent_advantages == 0.0))
    return metrics


def advantage_sizes(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """Return each policy's mean absolute advantage, before normalization."""
    by_policy: dict[str, list[np.ndarray]] = {}
    for sample, advantages in zip(samples, raw, strict=True):
        by_policy.setdefault(sample.action.policy, []).append(np.abs(advantages))
    return {policy: float(np.concatenate(rows).mean()) for policy, rows in by_policy.items()}


def select_first_per_agent(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return every agent's first ``count`` samples."""
    counts: Counter[str] = Counter()
    chosen = []
    for sample in samples:
        counts[sample.action.agent] += 1
        if counts[sample.action.agent] <= count:
            chosen.append(sample)
    return chosen


def sample_per_agent(samples: Sequence[Sample], seed: int, step: int) -> list[Sample]:
    """Return random samples for every agent, fixed by seed and step.

    Each agent gets samples with at least ``KL_TOKENS`` decisions and at least ``KL_ACTIONS`` actions, or all its
    samples.
    """
    chosen: list[Sample] = []
    for agent in sorted({sample.action.agent for sample in samples}):
        agent_samples = [sample for sample in samples if sample.action.agent == agent]
        tokens = 0
        for count, index in enumerate(seeds.generator(seed, "kl", agent, step).permutation(len(agent_samples))):
            if tokens >= KL_TOKENS and count >= KL_ACTIONS:
                break
            chosen.append(agent_samples[index])
            tokens += agent_samples[index].action.num_decisions
    return chosen


def measure_kl(
    accumulator: MetricAccumulator,
    samples: Sequence[Sample],
    old: Mapping[ActionKey, Floats],
    after: Mapping[ActionKey, Floats],
) -> None:
    """Add an update's KL(π_old ‖ π): k3, mean over each agent's measured tokens, in nats.

    The team's mean weights agents by their total number of tokens.

    Args:
        accumulator: receives the metrics.
        samples: all samples of the step, measured or not.
        old: log-probabilities before the update, by the action's key.
        after: log-probabilities of the measured actions after the update, by the action's key.
    """
    tokens = Counter[str]()
    terms: dict[str, list[Floats]] = {}
    for sample in samples:
        agent, key = sample.action.agent, sample.action.key
        tokens[agent] += sample.action.num_decisions
        if key in after:
            terms.setdefault(agent, []).append(k3_estimate(torch.from_numpy(after[key] - old[key])).numpy())
    for agent, rows in terms.items():
        flat = np.concatenate(rows)
        accumulator.add(f"agents/{agent}/kl", float(flat.sum()), len(flat))
        accumulator.add("kl", float(flat.mean()) * tokens[agent], tokens[agent])


def measure_base_kl(
    accumulator: MetricAccumulator,
    samples: Sequence[Sample],
    old: Mapping[ActionKey, Floats],
    base: Mapping[ActionKey, Floats],
) -> None:
    """Add KL(policy ‖ untuned base) before the step, and −log π_base of the tokens, in nats.

    Args:
        accumulator: receives the metrics.
        samples: samples to measure on.
        old: log-probabilities under the policies, by the action's key.
        base: log-probabilities under their bases, by the action's key.
    """
    for sample in samples:
        log_ratio = torch.from_numpy(base[sample.action.key] - old[sample.action.key])
        total = float(k3_estimate(log_ratio).sum())
        for scope in ("", f"agents/{sample.action.agent}/"):
            accumulator.add(f"{scope}kl_to_base", total, len(log_ratio))
            accumulator.add(f"{scope}base_surprisal", -float(base[sample.action.key].sum()), len(log_ratio))


def _add_means(
    accumulator: MetricAccumulator, metric: str, agents: np.ndarray, names: Sequence[str], values: Floats
) -> None:
    counts = np.bincount(agents, minlength=len(names))
    sums = np.bincount(agents, values, len(names))
    accumulator.add(metric, float(sums.sum()), float(counts.sum()))
    for name, total, count in zip(names, sums, counts, strict=True):
        accumulator.add(f"agents/{name}/{metric}", float(total), float(count))
