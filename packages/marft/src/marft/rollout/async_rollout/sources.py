"""Sources of training episodes: synchronous, or asynchronous with ``rollout.max_policy_lag``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from marft.common.types import Episode, Task
from marft.common.usage import sum_counts
from marft.rollout.async_rollout.capacity import first_blocked_group
from marft.rollout.async_rollout.groups import Group, max_policy_lag
from marft.rollout.async_rollout.producer import Producer
from marft.rollout.async_rollout.storage import read_groups, write_groups
from marft.rollout.async_rollout.usage import compute_usage
from marft.rollout.rollout_batch import RolloutBatch, collect, first_attempts, fork_metrics, rewards_vary
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.checkpoints import State

FILE_STEM = "ahead"  # stem of the files in a checkpoint
EpisodeCallback = Callable[[Episode], None]


class RolloutSource(Protocol):
    """Source of episodes for training steps; call ``close`` at the end."""

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Return the batch of episodes for the step after ``state``.

        Args:
            state: progress of the run before the step.
            on_done: callback for each finished episode.
        """
        ...

    def usage(self) -> dict[str, float]:
        """Return the sampling usage for the latest batch, by metric name."""
        ...

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """Exclude validation episodes from the usage of training steps."""
        ...

    def usage_seconds(self, wait_seconds: float) -> float:
        """Return the wall-clock seconds that :meth:`usage` covers.

        Args:
            wait_seconds: seconds spent in :meth:`collect`.
        """
        ...

    def on_publish(self, state: State) -> None:
        """Handle newly published policy weights, which now match ``state``."""
        ...

    def on_rollback(self, state: State) -> None:
        """Handle a rollback of the run to ``state``.

        The policies now differ from the policies that sampled the episodes in progress.
        """
        ...

    def save(self, folder: Path) -> None:
        """Save to a checkpoint folder the data needed to resume."""
        ...

    def close(self) -> None:
        """Stop all rollouts in progress."""
        ...


class SyncRolloutSource:
    """Source that plays each step's episodes on request."""

    def __init__(self, rollouts: RolloutRunner, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        self._usage_before: dict[str, float] = {}

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Play and return the batch of episodes for the step after ``state``."""
        self._usage_before = dict(self._rollouts.usage())
        draw_count, curriculum = state.tasks_drawn, state.curriculum
        return collect(self._rollouts, self._tasks, state.step, draw_count, on_done, curriculum=curriculum)

    def usage(self) -> dict[str, float]:
        """Return the sampling usage since :meth:`collect` began."""
        return _usage_since(self._usage_before, self._rollouts)

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """No-op: validation runs between steps, outside the measured usage."""

    def usage_seconds(self, wait_seconds: float) -> float:
        """Return ``wait_seconds``, the seconds spent in :meth:`collect`."""
        return wait_seconds

    def on_publish(self, state: State) -> None:
        """No-op: no rollout runs in the background."""

    def on_rollback(self, state: State) -> None:
        """No-op: no rollout runs in the background."""

    def save(self, folder: Path) -> None:
        """No-op: each step starts from an empty batch."""

    def close(self) -> None:
        """No-op: no rollout runs in the background."""


class AsyncRolloutSource:
    """Source that plays groups for later steps during the learner's updates.

    Training steps consume the groups in order of their numbers.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: current progress of the run.
        folder: checkpoint folder with the files of :meth:`save`, if the run resumes.

    Raises:
        ValueError: the saved groups cannot be read.
    """

    def __init__(
        self, rollouts: RolloutRunner, tasks: Sequence[Task], state: State, folder: Path | None = None
    ) -> None:
        self._rollouts, self._run = rollouts, rollouts.run
        self._sampler = TaskSampler.from_tasks(rollouts.run, tasks)
        self._producer = Producer(rollouts, self._sampler)
        self._next = self._first = state.tasks_drawn  # first group not trained on yet
        self._discarded = 0  # discarded groups from ``_first`` on
        self._skipped: set[int] = set()  # groups from ``_next`` on that never start: task excluded
        self._step, self._dropped = state.step, 0
        self._curriculum = state.curriculum
        self._usage_before, self._started_at = dict(rollouts.usage()), time.perf_counter()
        self._idle = 0.0
        for group in read_groups(folder, tasks, FILE_STEM) if folder else ():
            self._producer.put(group)

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Wait for the step's groups and return the batch.

        Groups older than the lag limit are dropped. With dynamic sampling, groups of equal rewards are dropped too.
        Later groups replace the dropped groups.
        """
        assert state.tasks_drawn == self._next, "steps learn from all groups, one after the other"
        started_at, clock = time.perf_counter(), self._producer.clock
        between, idle = started_at - self._started_at, clock.idle() - self._idle
        self._start_groups()
        rounds, per_step = self._run.algorithm.dynamic_sampling, self._run.rollout.tasks_per_step
        usable, selected, taken_groups = list[Episode](), list[list[Episode]](), list[Group]()
        while len(selected) < per_step and len(taken_groups) - len(selected) < (rounds + 1) * per_step:
            group = self._take_next()
            if group is None:
                continue
            taken_groups.append(group)
            for episode in group.episodes:
                on_done(episode)
            usable = group.scored or usable
            if rounds and not rewards_vary(group.scored, self._run):
                self._discard()
            else:
                selected.append(group.scored)
        recorded = [episode for group in taken_groups for episode in group.recorded]
        metrics = fork_metrics(recorded) | self._compute_metrics(recorded)
        if rounds:
            metrics["groups_discarded"] = float(len(taken_groups) - len(selected))
        metrics["async/learner_idle_seconds"] = time.perf_counter() - started_at
        metrics["async/sampler_idle_seconds"] = idle
        if between > 0.0:
            metrics["async/overlap"] = 1.0 - min(1.0, idle / between)
        return RolloutBatch(
            [episode for group in taken_groups for episode in group.episodes],
            [episode for scored in selected for episode in scored] or first_attempts(usable),
            recorded,
            self._next,
            metrics,
            self._first_blocked(),
        )

    def usage(self) -> dict[str, float]:
        """Return the sampling usage since the previous batch, without validation episodes."""
        usage = _usage_since(self._usage_before, self._rollouts)
        self._usage_before = dict(self._rollouts.usage())
        return usage

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """Subtract the usage of validation episodes."""
        self._usage_before = sum_counts(self._usage_before, compute_usage(episodes))

    def usage_seconds(self, wait_seconds: float) -> float:  # noqa: ARG002
        """Return the seconds since the previous batch."""
        before, self._started_at = self._started_at, time.perf_counter()
        self._idle = self._producer.clock.idle()
        return self._started_at - before

    def on_publish(self, state: State) -> None:
        """Start groups for one more step."""
        self._curriculum = state.curriculum
        self._first, self._discarded, self._step = state.tasks_drawn, 0, state.step
        self._start_groups()

    def on_rollback(self, state: State) -> None:
        """Cancel all groups and restart the draws from ``state``."""
        self._dropped += self._producer.cancel()
        self.on_publish(state)

    def save(self, folder: Path) -> None:
        """Save finished groups not trained on yet.

        Unfinished groups start again when the run resumes.
        """
        write_groups(folder, self._producer.finished_groups(), FILE_STEM)

    def close(self) -> None:
        """Cancel all groups in progress."""
        self._producer.close()

    def _start_groups(self) -> None:
        """Start groups up to the lag limit."""
        number = self._next
        while number < self._first_blocked():
            if not self._producer.has_group(number):
                if self._sampler.task_at(
                    number, self._curriculum or self._sampler.initial_curriculum(), self._rollouts.excluded_tasks
                )[0]:
                    self._producer.begin(number, self._curriculum)
                else:
                    self._skipped.add(number)
            number += 1

    def _first_blocked(self) -> int:
        return first_blocked_group(
            self._first,
            self._discarded + len(self._skipped),
            lag=self._run.rollout.max_policy_lag,
            per_step=self._run.rollout.tasks_per_step,
            remaining_steps=self._run.training.steps - self._step,
        )

    def _take_next(self) -> Group | None:
        """Return the next group, or None if the group is excluded or too old."""
        number, self._next = self._next, self._next + 1
        if number in self._skipped:
            self._skipped.remove(number)
            self._discarded += 1
            return None
        group = self._producer.take(number)
        if (
            max_policy_lag(group.recorded, self._run.trained_policies, self._rollouts.version)
            <= self._run.rollout.max_policy_lag
        ):
            return group
        self._dropped += 1
        self._discard()
        return None

    def _discard(self) -> None:
        self._discarded += 1
        self._start_groups()

    def _compute_metrics(self, recorded: Sequence[Episode]) -> dict[str, float]:
        dropped, self._dropped = self._dropped, 0
        return {
            "policy_lag_max": float(max_policy_lag(recorded, self._run.trained_policies, self._rollouts.version)),
            "async/groups_ready": float(len(self._producer.finished_groups())),
            "async/groups_in_flight": float(self._producer.unfinished_count),
            "async/groups_dropped": float(dropped),
        }


def _usage_since(before: dict[str, float], rollouts: RolloutRunner) -> dict[str, float]:
    return {name: count - before.get(name, 0.0) for name, count in rollouts.usage().items()}
