"""What a training step reports, for the team and for each agent (the metrics every run logs)."""

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
BASE_KL_ACTIONS = 4  # of each agent, on which KL to the untuned base is measured


def measure_tokens(awaited: Awaited, meter: Meter, batch: MicroBatch, **values_T: Tensor) -> None:
    """Add means over sampled tokens, team-wide and by agent, once they are read."""
    for metric, tensor in values_T.items():
        awaited.add(tensor, partial(_add_means, meter, metric, batch.agents, batch.agent_names))


def measure_units(awaited: Awaited, meter: Meter, batch: MicroBatch, **values_U: Tensor) -> None:
    """Add means over units (actions or tokens), team-wide and by agent, once they are read."""
    for metric, tensor in values_U.items():
        awaited.add(tensor, partial(_add_means, meter, metric, batch.unit_agents(), batch.agent_names))


def measure_difference(awaited: Awaited, meter: Meter, batch: MicroBatch, old_T: Tensor) -> None:
    """How far the learner's log-probs are from the engine's, for the same weights: mean and largest."""

    def told(sizes: Floats) -> None:
        _add_means(meter, "log_prob_difference", batch.agents, batch.agent_names, sizes)
        meter.peak("log_prob_difference_max", float(sizes.max()))
        for index, name in enumerate(batch.agent_names):
            meter.peak(f"agents/{name}/log_prob_difference_max", float(sizes[batch.agents == index].max()))

    awaited.add((old_T - batch.engine_log_probs).abs(), told)


def measure_gradient_share(awaited: Awaited, meter: Meter, batch: MicroBatch, gradient_T: Tensor) -> None:
    """Add up |∂loss/∂log π| by agent; :func:`gradient_shares` turns the sums into shares."""

    def told(sizes: Floats) -> None:
        by_agent = np.bincount(batch.agents, sizes, len(batch.agent_names))
        for name, size in zip(batch.agent_names, by_agent, strict=True):
            meter.add(f"agents/{name}/gradient_share", float(size), 0.0)

    awaited.add(gradient_T.abs(), told)


def gradient_shares(meter: Meter, agents: Sequence[str]) -> dict[str, float]:
    sizes = {name: meter.total(f"agents/{name}/gradient_share") for name in agents}
    total = sum(sizes.values())
    return {f"agents/{name}/gradient_share": size / total if total else math.nan for name, size in sizes.items()}


def measure_weights(awaited: Awaited, meter: Meter, batch: MicroBatch, weights_U: Tensor) -> None:
    """Add up the weights of the sampler correction; :func:`effective_sizes` turns the sums into shares."""

    def told(weights: Floats) -> None:
        agents = batch.unit_agents()
        for index, name in enumerate(batch.agent_names):
            mine = weights[agents == index]
            for part, total in zip(ESS, (mine.sum(), np.square(mine).sum(), len(mine)), strict=True):
                meter.add(f"agents/{name}/{part}", float(total), 0.0)

    awaited.add(weights_U, told)


def effective_sizes(meter: Meter, agents: Sequence[str]) -> dict[str, float]:
    """The effective sample size over the number of units, (Σw)² / (N Σw²), for the team and each agent; of those that
    have any weight."""
    of_agents = {name: np.array([meter.total(f"agents/{name}/{part}") for part in ESS]) for name in agents}
    sums = {f"agents/{name}/": mine for name, mine in of_agents.items()} | {"": sum(of_agents.values(), np.zeros(3))}
    return {f"{scope}ess": float(w * w / (n * squares)) for scope, (w, squares, n) in sums.items() if squares}


def advantage_metrics(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """The fraction of trained decisions whose advantage was exactly 0 before normalisation: they teach nothing."""
    flat = np.concatenate(raw) if raw else np.empty(0)
    metrics = {"zero_advantage_fraction": float(np.mean(flat == 0.0)) if len(flat) else math.nan}
    for name in sorted({sample.action.agent for sample in samples}):
        mine = np.concatenate([a for s, a in zip(samples, raw, strict=True) if s.action.agent == name])
        metrics[f"agents/{name}/zero_advantage_fraction"] = float(np.mean(mine == 0.0))
    return metrics


def advantage_sizes(samples: Sequence[Sample], raw: Sequence[np.ndarray]) -> dict[str, float]:
    """Mean |advantage| of each policy's decisions before normalisation."""
    mine: dict[str, list[np.ndarray]] = {}
    for sample, advantages in zip(samples, raw, strict=True):
        mine.setdefault(sample.action.policy, []).append(np.abs(advantages))
    return {policy: float(np.concatenate(rows).mean()) for policy, rows in mine.items()}


def first_of_each_agent(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most ``count`` samples of every agent."""
    counts: Counter[str] = Counter()
    chosen = []
    for sample in samples:
        counts[sample.action.agent] += 1
        if counts[sample.action.agent] <= count:
            chosen.append(sample)
    return chosen


def drawn_of_each_agent(samples: Sequence[Sample], seed: int, step: int) -> list[Sample]:
    """Some samples of every agent, drawn at random by the run's seed and the step: as many as hold ``KL_TOKENS``
    decisions, and at least ``KL_ACTIONS``; all of an agent that has no more."""
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
    """KL(π_old ‖ π) of a whole update: k3, mean over the measured tokens of each agent. The team's mean weighs agents
    by all of their tokens.

    Args:
        samples: of the step, measured or not.
        old: log-probs before the update, by the action's key.
        after: log-probs of the measured actions after it.
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
    """KL(policy ‖ untuned base) before the step, over ``samples``, and −log π_base of their tokens.

    Args:
        old: the policies' log-probs by the action's key.
        base: those of their bases.
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
