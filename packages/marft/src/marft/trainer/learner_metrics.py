"""Metrics of a training step, by team, policy and agent; credit log; and warnings about inexact log-probabilities.

Values are stored during training, so no forward pass is repeated.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.callbacks import Callback
from marft.common.log import get_logger
from marft.common.types import ActionCredit, ActionKey, Sample
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.credit import Floats
from marft.models.devices import DeferredReads
from marft.trainer.loss import k3_estimate
from marft.trainer.micro_batch import MicroBatch
from marft.trainer.ranks.interface import Ranks

logger = get_logger(__name__)
ESS = ("ess/weights", "ess/squares", "ess/units")  # sums of w, w², 1
KL_TOKENS = 256  # minimum decisions per agent for the KL of an update
CreditCallback = Callable[[list[ActionCredit]], None]  # callback for the credit of each action in a step
PACKING_TOLERANCE = 1e-4  # nats per token, between scores of the same weights
ENGINE_TOLERANCE = 0.05  # mean nats per token; bfloat16 alone gives about 0.01; NeMo RL's tests fail above this
PACKING_WARNING = (
    "this device's kernels score a token differently in other company, by up to {:.1g} nats: ratios of later epochs, "
    "and of policies that step one after another, are off by as much; where clips are narrow set algorithm.epochs = 1 "
    "and algorithm.schedule = {{ name = 'simultaneous' }}"
)
ENGINE_WARNING = (
    "{}: engine and learner differ by {:.2g} nats a token on average, and rounding explains no more than {:g}: it "
    "learns from what it would not have sampled; set algorithm.sampler_correction = {{ level = '{}' }}, or dtype = "
    "'float32' for its model"
)


class MetricAccumulator:
    """Accumulator for sums and counts by name, with means independent of batching, and for logs by the action's key.

    >>> meter = MetricAccumulator()
    >>> meter.add("entropy", 3.0, 2); meter.add("entropy", 1.0, 2); meter.update_max("difference", 0.5)
    >>> meter.means() == {"entropy": 1.0, "difference": 0.5}
    True
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._max_values: dict[str, float] = {}
        self.entropies: dict[ActionKey, Floats] = {}  # entropy of each decision when first scored, in nats
        # Σ |∂loss/∂log π| over an action's decisions and all minibatches with an optimizer step
        self.gradients: dict[ActionKey, float] = {}

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """Add ``count`` observations with sum ``total``."""
        self._sums[name] += total
        self._counts[name] += count

    def update_max(self, name: str, value: float) -> None:
        """Update the maximum; NaN takes precedence and stays visible."""
        current = self._max_values.get(name, -math.inf)
        self._max_values[name] = value if math.isnan(value) else max(current, value)

    def add_gradient(self, key: ActionKey, size: float) -> None:
        """Add to the gradient of an action."""
        self.gradients[key] = self.gradients.get(key, 0.0) + size

    def merge(self, other: MetricAccumulator) -> None:
        """Merge another accumulator into this one."""
        for name, total in other._sums.items():
            self.add(name, total, other._counts[name])
        for name, value in other._max_values.items():
            self.update_max(name, value)
        self.entropies.update(other.entropies)
        for key, size in other.gradients.items():
            self.add_gradient(key, size)

    def merge_ranks(self, ranks: Ranks) -> MetricAccumulator:
        """Merge the accumulators from every rank.

        A value that every rank adds identically keeps its mean.
        """
        merged = MetricAccumulator()
        for rank_metrics in ranks.gather(self):
            merged.merge(rank_metrics)
        return merged

    def total(self, name: str) -> float:
        """Return a metric's sum."""
        return self._sums[name]

    def means(self) -> dict[str, float]:
        """Return the mean or maximum of each metric; metrics with count 0 are omitted."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums if self._counts[name]}
        return {**means, **self._max_values}


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchMetrics:
    """Metrics of a micro-batch, added to an accumulator after the deferred reads, for the team and by agent."""

    batch: MicroBatch
    accumulator: MetricAccumulator
    deferred: DeferredReads

    def add_tokens(self, **values_T: Tensor) -> None:
        """Add means over decisions."""
        for metric, tensor in values_T.items():
            self.deferred.add(tensor, partial(self._add_means, metric, self.batch.agents))

    def add_units(self, **values_U: Tensor) -> None:
        """Add means over units (actions or tokens)."""
        for metric, tensor in values_U.items():
            self.deferred.add(tensor, partial(self._add_means, metric, self.batch.unit_agents()))

    def add_mismatch(self, old_T: Tensor) -> None:
        """Add the mean and maximum difference between the learner's and the engine's log-probabilities.

        Both use the same weights; the unit is nats.
        """

        def add(sizes: Floats) -> None:
            agents, names = self.batch.agents, self.batch.agent_names
            self._add_means("log_prob_difference", agents, sizes)
            self.accumulator.update_max("log_prob_difference_max", float(sizes.max()))
            for index, name in enumerate(names):
                self.accumulator.update_max(
                    f"agents/{name}/log_prob_difference_max", float(sizes[agents == index].max())
                )

        self.deferred.add((old_T - self.batch.engine_log_probs).abs(), add)

    def add_entropies(self, entropies_T: Tensor) -> None:
        """Log the entropies of the actions."""
        self.deferred.add(entropies_T, lambda flat: self.accumulator.entropies.update(self.batch.split_by_action(flat)))

    def add_gradients(self, gradient_T: Tensor) -> None:
        """Add |∂loss/∂log π| by action and by agent; :func:`compute_gradient_shares` computes shares from the sums."""

        def add(sizes: Floats) -> None:
            for key, action_sizes in self.batch.split_by_action(sizes).items():
                self.accumulator.add_gradient(key, float(action_sizes.sum()))
            by_agent = np.bincount(self.batch.agents, sizes, len(self.batch.agent_names))
            for name, size in zip(self.batch.agent_names, by_agent, strict=True):
                self.accumulator.add(f"agents/{name}/gradient_share", float(size), 0.0)

        self.deferred.add(gradient_T.abs(), add)

    def add_weights(self, weights_U: Tensor) -> None:
        """Add sampler correction weights; :func:`compute_relative_ess` computes effective sample sizes."""

        def add(weights: Floats) -> None:
            agents = self.batch.unit_agents()
            for index, name in enumerate(self.batch.agent_names):
                own = weights[agents == index]
                for part, total in zip(ESS, (own.sum(), np.square(own).sum(), len(own)), strict=True):
                    self.accumulator.add(f"agents/{name}/{part}", float(total), 0.0)

        self.deferred.add(weights_U, add)

    def add_teammate_weights(self, weights_M: Tensor) -> None:
        """Add the mean weight of teammate text."""
        self.deferred.add(
            weights_M, lambda values: self.accumulator.add("teammate_weight", float(values.sum()), len(values))
        )

    def _add_means(self, metric: str, agents: np.ndarray, values: Floats) -> None:
        names = self.batch.agent_names
        counts = np.bincount(agents, minlength=len(names))
        sums = np.bincount(agents, values, len(names))
        self.accumulator.add(metric, float(sums.sum()), float(counts.sum()))
        for name, total, count in zip(names, sums, counts, strict=True):
            self.accumulator.add(f"agents/{name}/{metric}", float(total), float(count))


def compute_gradient_shares(accumulator: MetricAccumulator, agents: Sequence[str]) -> dict[str, float]:
    """Return each agent's share of the total |∂loss/∂log π|; NaN without gradient."""
    sizes = {name: accumulator.total(f"agents/{name}/gradient_share") for name in agents}
    total = sum(sizes.values())
    return {f"agents/{name}/gradient_share": size / total if total else math.nan for name, size in sizes.items()}


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


def sample_per_agent(samples: Sequence[Sample], count: int, seed: int, step: int) -> list[Sample]:
    """Return random samples for every agent, fixed by seed and step.

    Each agent gets at least ``count`` actions with at least ``KL_TOKENS`` decisions, or all its samples; none if
    ``count`` is 0.
    """
    if not count:
        return []
    chosen: list[Sample] = []
    for agent in sorted({sample.action.agent for sample in samples}):
        agent_samples = [sample for sample in samples if sample.action.agent == agent]
        tokens = 0
        for taken, index in enumerate(seeds.generator(seed, "kl", agent, step).permutation(len(agent_samples))):
            if tokens >= KL_TOKENS and taken >= count:
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


class LogProbWarnings(Callback):
    """Callback that monitors log-probability metrics, and warns once per problem, with the fix."""

    def __init__(self, settings: AlgorithmSettings) -> None:
        self._settings = settings
        self._warned: set[str] = set()

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Check the metrics of a step."""
        packing_mismatch = metrics.get("packing_difference", 0.0)
        if packing_mismatch > PACKING_TOLERANCE:
            self._warn_once("packing", PACKING_WARNING.format(packing_mismatch))
        if self._settings.sampler_correction.level != "none" or self._settings.objective.reads_pairs:
            return
        role, mismatch = _find_largest_mismatch(metrics)
        if mismatch > ENGINE_TOLERANCE:
            level = "token" if self._settings.level == "token" else "geometric"
            self._warn_once("engine", ENGINE_WARNING.format(role, mismatch, ENGINE_TOLERANCE, level))

    def _warn_once(self, problem: str, text: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            logger.warning(text)


def _find_largest_mismatch(metrics: Mapping[str, float]) -> tuple[str, float]:
    """Return the agent with the largest mean difference between learner and engine, and the difference in nats per
    token.
    """
    mismatches = {name.split("/")[1]: value for name, value in metrics.items() if name.endswith("/log_prob_difference")}
    return max(mismatches.items(), key=lambda item: item[1], default=("", 0.0))
