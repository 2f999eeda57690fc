"""Sources of training episodes: synchronous, asynchronous (``max_policy_lag``), and with reuse (``rollout.reuse``)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from marft.common.errors import RunError
from marft.common.types import Episode, Task
from marft.common.usage import Usage, sum_counts
from marft.config.models import opponent_pools
from marft.config.plugins import load_registered
from marft.inference.endpoints.responses import to_metrics
from marft.rollout.async_rollout.groups import Group, first_blocked_group, max_policy_lag, read_groups, write_groups
from marft.rollout.async_rollout.producer import Producer
from marft.rollout.rollout_batch import RolloutBatch, collect_rollouts, first_attempts, fork_metrics, rewards_vary
from marft.rollout.runner import EpisodeCallback, RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.state import State

ASYNC_FILE_STEM = "ahead"  # stem of the files in a checkpoint
REPLAY_FILE_STEM = "again"  # stem of the files in a checkpoint


class RolloutSource(ABC):
    """Source of episodes for training steps; call ``close`` at the end.

    By default, no rollout runs in the background, and a checkpoint needs no data of the source.
    """

    @abstractmethod
    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Return the batch of episodes for the step after ``state``.

        Args:
            state: progress of the run before the step.
            on_done: callback for each finished episode.
        """

    def play_again(self, state: State, repeat: int, on_done: EpisodeCallback) -> RolloutBatch:  # noqa: ARG002
        """Play the tasks of the step after ``state`` again, with the policies that were published last.

        Args:
            state: progress of the run before the step.
            repeat: number of times that the tasks were played before.
            on_done: callback for each finished episode.

        Raises:
            RunError: this source cannot play a step twice.
        """
        raise RunError(
            "algorithm.schedule asks for new episodes within a step, which needs episodes played on request: set "
            "rollout.max_policy_lag = 0 and rollout.reuse = 1, and leave out sections and pools that bring episodes of "
            f"their own ({type(self).__name__})"
        )

    @abstractmethod
    def latest_batch_usage(self) -> dict[str, float]:
        """Return the sampling usage for the latest batch, by metric name."""

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:  # noqa: B027
        """Exclude validation episodes from the usage of training steps."""

    def usage_seconds(self, wait_seconds: float) -> float:
        """Return the wall-clock seconds that :meth:`latest_batch_usage` covers.

        Args:
            wait_seconds: seconds spent in :meth:`collect`.
        """
        return wait_seconds

    def on_publish(self, state: State) -> None:  # noqa: B027
        """Handle newly published policy weights, which now match ``state``."""

    def on_rollback(self, state: State) -> None:  # noqa: B027
        """Handle a rollback of the run to ``state``.

        The policies now differ from the policies that sampled the episodes in progress.
        """

    def save(self, folder: Path) -> None:  # noqa: B027
        """Save to a checkpoint folder the data needed to resume."""

    def close(self) -> None:  # noqa: B027
        """Stop all rollouts in progress."""


class SyncRolloutSource(RolloutSource):
    """Source that plays each step's episodes on request. Validation runs between steps, outside the measured usage."""

    def __init__(self, rollouts: RolloutRunner, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        self._usage_before: dict[str, float] = {}

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Play and return the batch of episodes for the step after ``state``."""
        return self.play_again(state, 0, on_done)

    def play_again(self, state: State, repeat: int, on_done: EpisodeCallback) -> RolloutBatch:
        """Play the tasks of the step after ``state`` again, with the policies that were published last."""
        self._usage_before = dict(self._rollouts.usage())
        return collect_rollouts(self._rollouts, self._tasks, state, on_done, repeat=repeat)

    def latest_batch_usage(self) -> dict[str, float]:
        """Return the sampling usage since the latest batch began."""
        return _usage_since(self._usage_before, self._rollouts)


class AsyncRolloutSource(RolloutSource):
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
        for group in read_groups(folder, tasks, ASYNC_FILE_STEM) if folder else ():
            self._producer.put(group)

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Wait for the step's groups and return the batch.

        Groups older than the lag limit are dropped. With dynamic sampling, groups of equal rewards are dropped too.
        Later groups replace the dropped groups.
        """
        assert state.tasks_drawn == self._next, "steps learn from all groups, one after the other"
        started_at, clock = time.perf_counter(), self._producer.clock
        between, idle = started_at - self._started_at, clock.total_idle_seconds() - self._idle
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

    def latest_batch_usage(self) -> dict[str, float]:
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
        self._idle = self._producer.clock.total_idle_seconds()
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
        write_groups(folder, self._producer.finished_groups(), ASYNC_FILE_STEM)

    def close(self) -> None:
        """Cancel all groups in progress."""
        self._producer.close()

    def _start_groups(self) -> None:
        """Start groups up to the lag limit."""
        number = self._next
        while number < self._first_blocked():
            if not self._producer.has_group(number):
                task, _ = self._sampler.task_at(number, self._curriculum, self._rollouts.excluded_tasks)
                if task:
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
        lag = max_policy_lag(group.recorded, self._run.trained_policies, self._rollouts.version)
        if lag <= self._run.rollout.max_policy_lag:
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


def compute_usage(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the sampling usage of episodes, by metric name.

    The counts match a separate engine and endpoints, except for work outside of episodes, such as failed actions. A
    choice from a list counts as prefill and not as sampled tokens.
    """
    actions = [action for episode in episodes for action in episode.actions]
    remote = [action.usage for action in actions if action.usage]
    local_actions = [action for action in actions if not action.usage]
    contexts = [context for action in local_actions for context, _, _ in action.segments]
    return {
        "sampled_tokens": float(sum(int(action.own_mask.sum()) for action in local_actions if not action.choice)),
        "prefill/prompt_tokens": float(sum(map(len, contexts))),
        **(to_metrics(sum(remote, Usage()), "remote_") if remote else {}),
    }


class RolloutSourceWrapper(RolloutSource):
    """Wrapper around a rollout source.

    Every method but ``collect`` delegates to the wrapped source. A subclass implements ``collect`` and overrides the
    methods whose behavior changes.
    """

    def __init__(self, source: RolloutSource) -> None:
        self._source = source

    def latest_batch_usage(self) -> dict[str, float]:
        """Return the wrapped source's sampling usage."""
        return self._source.latest_batch_usage()

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """Pass validation episodes to the wrapped source."""
        self._source.exclude_validation(episodes)

    def usage_seconds(self, wait_seconds: float) -> float:
        """Return the wrapped source's sampling time, in seconds."""
        return self._source.usage_seconds(wait_seconds)

    def on_publish(self, state: State) -> None:
        """Tell the wrapped source about a published policy."""
        self._source.on_publish(state)

    def on_rollback(self, state: State) -> None:
        """Roll back the wrapped source."""
        self._source.on_rollback(state)

    def save(self, folder: Path) -> None:
        """Save the wrapped source."""
        self._source.save(folder)

    def close(self) -> None:
        """Close the wrapped source."""
        self._source.close()


class ReplayBuffer(RolloutSourceWrapper):
    """Wrapper that adds the episodes of the previous ``reuse − 1`` steps to each batch.

    If credit compares attempts at the same task, newer attempts replace older attempts at that task. Attempts of
    different policies must not share a baseline.

    Args:
        source: source of new episodes.
        rollouts: runner for the episodes.
        tasks: training tasks.
        folder: checkpoint folder with the files of :meth:`save`, if the run resumes.

    Raises:
        ValueError: the saved episodes cannot be read.
    """

    def __init__(
        self, source: RolloutSource, rollouts: RolloutRunner, tasks: Sequence[Task], folder: Path | None = None
    ) -> None:
        super().__init__(source)
        self._rollouts = rollouts
        self._times, self._grouped = rollouts.run.rollout.reuse, bool(rollouts.run.algorithm.credit.comparison_group)
        saved = read_groups(folder, tasks, REPLAY_FILE_STEM) if folder else []
        self._steps = [(group.number, list(group.recorded)) for group in saved]  # newest first

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Return the step's new episodes together with reused episodes."""
        batch = self._source.collect(state, on_done)
        if not batch.training_episodes:
            return batch
        training_episodes = list(batch.training_episodes)
        for _, episodes in self._steps:
            newer = {episode.task.id for episode in training_episodes} if self._grouped else set()
            training_episodes += [episode for episode in episodes if episode.task.id not in newer]
        self._steps = [(state.step, batch.training_episodes), *self._steps][: self._times - 1]
        trained = self._rollouts.run.trained_policies
        metrics = {
            "reused_episodes": float(len(training_episodes) - len(batch.training_episodes)),
            "policy_lag_max": float(max_policy_lag(training_episodes, trained, self._rollouts.version)),
        }
        return replace(batch, training_episodes=training_episodes, metrics={**batch.metrics, **metrics})

    def on_rollback(self, state: State) -> None:
        """Discard the episodes of the abandoned policy."""
        self._steps.clear()
        super().on_rollback(state)

    def save(self, folder: Path) -> None:
        """Save the buffer and the wrapped source."""
        super().save(folder)
        write_groups(folder, [Group(step, [], episodes) for step, episodes in self._steps], REPLAY_FILE_STEM)


def open_source(rollouts: RolloutRunner, tasks: Sequence[Task], state: State, folder: Path | None) -> RolloutSource:
    """Open the rollout source for ``rollout.max_policy_lag``, ``rollout.reuse`` and population pools.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: current progress of the run.
        folder: checkpoint folder, if the run resumes.

    Raises:
        ValueError: the saved groups cannot be read.
    """
    settings = rollouts.run.rollout
    if opponent_pools(rollouts.run):
        source: RolloutSource = load_registered("rollout_sources", "pool")(rollouts, tasks, folder)
        return source
    source = SyncRolloutSource(rollouts, tasks)
    if settings.max_policy_lag:
        source = AsyncRolloutSource(rollouts, tasks, state, folder)
    return ReplayBuffer(source, rollouts, tasks, folder) if settings.reuse > 1 else source
