"""Metrics of a training step: its rollouts, failures, validation and timing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from marft.envs.tasks import read_tasks
from marft.evaluation.episode_metrics import episode_metrics, remote_usage_metrics
from marft.evaluation.evaluate import evaluate
from marft.evaluation.writing_metrics import format_rates
from marft.rollout.async_rollout.sources import RolloutSource
from marft.rollout.rollout_batch import RolloutBatch
from marft.rollout.runner import FAILURE_METRICS, RolloutRunner
from marft.trainer.micro_batch import count_input_tokens


def compute_rollout_metrics(rollouts: RolloutRunner, batch: RolloutBatch) -> dict[str, float]:
    """Return metrics for a step's episodes, before training on them."""
    roles, episodes = [agent.role for agent in rollouts.run.agents], batch.episodes
    metrics = episode_metrics(episodes, roles, rollouts.version)
    metrics |= format_rates([episode for episode in episodes if episode.is_scored], rollouts.run.guards.formats)
    metrics |= batch.metrics | remote_usage_metrics([*batch.recorded, *batch.imagined], roles)
    sampled_actions = {action.key for episode in batch.recorded for action in episode.actions}
    metrics["sampled_actions"] = float(len(sampled_actions))  # forks included, replayed actions counted once
    return metrics


def count_failures(rollouts: RolloutRunner) -> dict[str, float]:
    """Return failure counts so far, by metric name."""
    return {name: count for name, count in rollouts.usage().items() if name in FAILURE_METRICS}


def validate(rollouts: RolloutRunner, source: RolloutSource) -> dict[str, float]:
    """Return accuracy and reward on the validation tasks; unknown metrics are omitted."""
    tasks = read_tasks(rollouts.run.environment, "validation")[: rollouts.run.evaluation.validation_tasks]
    evaluation, episodes = evaluate(rollouts, "now", "sampled", tasks, split="validation")
    source.exclude_validation(episodes)
    metrics = {"validation_accuracy": evaluation.accuracy, "validation_reward": evaluation.reward}
    return {name: value for name, value in metrics.items() if value is not None}


class PhaseTimer:
    """Timer with seconds by phase. A phase within another pauses the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # seconds of phases within the current one

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the seconds of the ``with`` block to a phase."""
        started_at, outer, self._inner = time.perf_counter(), self._inner, 0.0
        try:
            yield
        finally:
            seconds = time.perf_counter() - started_at
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds - self._inner
            self._inner = outer + seconds

    def total(self) -> float:
        """Return the seconds of all phases."""
        return math.fsum(self.seconds.values())

    def metrics(self) -> dict[str, float]:
        """Return the seconds as metrics."""
        return {**{f"seconds/{phase}": value for phase, value in self.seconds.items()}, "seconds": self.total()}


def throughput(
    batch: RolloutBatch, sampled_tokens: float, sampling_seconds: float, timer: PhaseTimer
) -> dict[str, float]:
    """Return a step's tokens and episodes per second.

    Args:
        batch: episodes of the step.
        sampled_tokens: tokens that were sampled for the step.
        sampling_seconds: seconds in which they were sampled, which may overlap with learning.
        timer: seconds of the step's phases.
    """
    input_tokens = sum(count_input_tokens(action) for episode in batch.training_episodes for action in episode.actions)
    return {
        "tokens_per_second": sampled_tokens / timer.total(),
        "tokens_per_second/sampling": sampled_tokens / sampling_seconds,
        "tokens_per_second/learning": input_tokens / timer.seconds["learning"],
        "episodes_per_second": len(batch.episodes) / timer.total(),
    }
