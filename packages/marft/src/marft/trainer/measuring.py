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
from marft.models.devices import Awaited
from marft.trainer.batching import MicroBatch
from marft.trainer.interfaces import KL_ACTIONS, KL_TOKENS, Floats
from marft.trainer.metering import Meter
from marft.trainer.scoring import k3

ESS = ("ess/weights", "ess/squares", "ess/units")  # sums of w, w², 1
BASE_KL_ACTIONS = 4  # actions per agent for the KL to the untuned base


def measure_tokens(awaited: Awaited, meter: Meter, batch: MicroBatch, **values_T: Tensor) -> None:
    """Add means over decisions, for the team and by agent, after the values are read."""
    for metric, tensor in values_T.items():
        awaited.add(tensor, partial(_add_means, meter, metric, batch.agents, batch.agent_names))


def measure_units(awaited: Awaited, meter: Meter, batch: MicroBatch, **values_U: Tensor) -> None:
    """Add means over units (actions or tokens), for the team and by agent, after the values are read."""
    for metric, tensor in values_U.items():
        awaited.add(tensor, partial(_add_means, meter, metric, batch.unit_agents(), batch.agent_names))


def measure_difference(awaited: Awaited, meter: Meter, batch: MicroBatch, old_T: Tensor) -> None:
    """Add the mean and maximum difference between the learner's and the engine's log-probabilities.

    Both use the same weights; the unit is nats.
    """

    def told(sizes: Floats) -> None:
        _add_means(meter, "log_prob_difference", batch.agents, batch.agent_names, sizes)
        meter.peak("log_prob_difference_max", float(sizes.max()))
        for index, name in enumerate(batch.agent_names):
            meter.peak(f"agents/{name}/log_prob_difference_max", float(sizes[batch.agents == index].max()))

    awaited.add((old_T - batch.engine_log_probs).abs(), told)


def measure_gradient_share(awaited: Awaited, meter: Meter, batch: MicroBatch, gradient_T: Tensor) -> None:
    """Add |∂loss/∂log π| by agent; :func:`gradient_shares` computes shares from the sums."""

    def told(sizes: Floats) -> None:
        by_agent = np.bincount(batch.agents, sizes, len(batch.agent_names))
        for name, size in zip(batch.agent_names, by_agent, strict=True):
            meter.add(f"agents/{name}/gradient_share", float(size), 0.0)

    awaited.add(gradient_T.abs(), told)


def gradient_shares(meter: Meter, agents: Sequence[str]) -> dict[str, float]:
    """Return each agent's share of the total |∂loss/∂log π|; NaN without gradient."""
    sizes = {name: meter.total(f"agents/{name}/gradient_share") for name in agents}
    total = sum(sizes.values())
    return {f"agents/{name}/gradient_share": size / total if total else math.nan for name, size in sizes.items()}


def measure_weights(awaited: Awaited, meter: Meter, batch: MicroBatch, weights_U: Tensor) -> None:
    """Add sampler correction weights; :func:`effective_sizes` computes effective sample sizes."""

    def told(weights: Floats) -> None:
        agents = batch.unit_agents()
        for index, name in enumerate(batch.agent_names):
            mine = weights[agents == index]
            for part, total in zip(ESS, (mine.sum(), np.square(mine).sum(), len(mine)), strict=True):
                meter.add(f"agents/{name}/{part}", float(total), 0.0)

    awaited.add(weights_U, told)


def effective_sizes(meter: Meter, agents: Sequence[str]) -> dict[str, float]:
    """Return the relative effective sample size (Σw)² / (N Σw²), for the team and each agent.

    Agents without any weight are omitted.
    """
    of_agents = {name: np.array([meter.total(f"agents/{name}/{part}") for part in ESS]) for name in agents}
    sums = {f"agents/{name}/": mine for name, mine in of_agents.items()} | {"": sum(of_agents.values(), np.zeros(3))}
    return {f"{scope}ess": float(w * w / (n * squares)) for scope, (w, squares, n) in sums.items() if squares}


def advantage_metrics(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the fraction of trained decisions with advantage exactly 0 before normalization.

    Such decisions do not contribute to learning.
    """
    flat = np.concatenate(raw) if raw else np.empty(0)
    metrics = {"zero_advantage_fraction": float(np.mean(flat == 0.0)) if len(flat) else math.nan}
    for name in sorted({sample.action.agent for sample in samples}):
        mine = np.concatenate([a for s, a in zip(samples, raw, strict=True) if s.action.agent == name])
        metrics[f"agents/{name}/zero_advantage_fraction"] = float(np.mean(mine == 0.0))
    return metrics


def advantage_sizes(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """Return each policy's mean absolute advantage, before normalization."""
    mine: dict[str, list[np.ndarray]] = {}
    for sample, advantages in zip(samples, raw, strict=True):
        mine.setdefault(sample.action.policy, []).append(np.abs(advantages))
    return {policy: float(np.concatenate(rows).mean()) for policy, rows in mine.items()}


def first_of_each_agent(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return every agent's first ``count`` samples."""
    counts: Counter[str] = Counter()
    chosen = []
    for sample in samples:
        counts[sample.action.agent] += 1
        if counts[sample.action.agent] <= count:
            chosen.append(sample)
    return chosen


def drawn_of_each_agent(samples: Sequence[Sample], seed: int, step: int) -> list[Sample]:
    """Return random samples for every agent, fixed by seed and step.

    Each agent gets samples with at least ``KL_TOKENS`` decisions and at least ``KL_ACTIONS`` actions, or all its
    samples.
    """
    chosen: list[Sample] = []
    for agent in sorted({sample.action.agent for sample in samples}):
        mine = [sample for sample in samples if sample.action.agent == agent]
        tokens = 0
        for count, index in enumerate(seeds.generator(seed, "kl", agent, step).permutation(len(mine))):
            if tokens >= KL_TOKENS and count >= KL_ACTIONS:
                break
            chosen.append(mine[index])
            tokens += mine[index].action.decisions
    return chosen


def measure_kl(
    meter: Meter, samples: Sequence[Sample], old: Mapping[ActionKey, Floats], after: Mapping[ActionKey, Floats]
) -> None:
    """Add an update's KL(π_old ‖ π): k3, mean over each agent's measured tokens, in nats.

    The team's mean weights agents by their total number of tokens.

    Args:
        meter: receives the metrics.
        samples: all samples of the step, measured or not.
        old: log-probabilities before the update, by the action's key.
        after: log-probabilities of the measured actions after the update, by the action's key.
    """
    tokens = Counter[str]()
    terms: dict[str, list[Floats]] = {}
    for sample in samples:
        agent, key = sample.action.agent, sample.action.key
        tokens[agent] += sample.action.decisions
        if key in after:
            terms.setdefault(agent, []).append(k3(torch.from_numpy(after[key] - old[key])).numpy())
    for agent, rows in terms.items():
        flat = np.concatenate(rows)
        meter.add(f"agents/{agent}/kl", float(flat.sum()), len(flat))
        meter.add("kl", float(flat.mean()) * tokens[agent], tokens[agent])


def measure_base_kl(
    meter: Meter, samples: Sequence[Sample], old: Mapping[ActionKey, Floats], base: Mapping[ActionKey, Floats]
) -> None:
    """Add KL(policy ‖ untuned base) before the step, and −log π_base of the tokens, in nats.

    Args:
        meter: receives the metrics.
        samples: samples to measure on.
        old: log-probabilities under the policies, by the action's key.
        base: log-probabilities under their bases, by the action's key.
    """
    for sample in samples:
        difference = torch.from_numpy(base[sample.action.key] - old[sample.action.key])
        total = float(k3(difference).sum())
        for scope in ("", f"agents/{sample.action.agent}/"):
            meter.add(f"{scope}kl_to_base", total, len(difference))
            meter.add(f"{scope}base_surprisal", -float(base[sample.action.key].sum()), len(difference))


def _add_means(meter: Meter, metric: str, agents: np.ndarray, names: Sequence[str], values: Floats) -> None:
    counts = np.bincount(agents, minlength=len(names))
    sums = np.bincount(agents, values, len(names))
    meter.add(metric, float(sums.sum()), float(counts.sum()))
    for name, total, count in zip(names, sums, counts, strict=True):
        meter.add(f"agents/{name}/{metric}", float(total), float(count))
