"""Sources of training episodes: synchronous, or asynchronous with ``rollout.max_policy_lag``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from marft.common.types import Episode, Task
from marft.common.usage import added
from marft.rollout.ahead.capacity import end_of_room
from marft.rollout.ahead.groups import Group, oldest
from marft.rollout.ahead.keeping import read_groups, write_groups
from marft.rollout.ahead.producer import Producer
from marft.rollout.ahead.taken import taken
from marft.rollout.collection import Collection, alone, collect, fork_metrics, told_apart
from marft.rollout.drawing import Draws
from marft.rollout.playing import Rollouts
from marft.runs.checkpoints import State

NAME = "ahead"  # stem of the files in a checkpoint
OnDone = Callable[[Episode], None]


class Gathering(Protocol):
    """Source of episodes for training steps; call ``close`` at the end."""

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Return the batch of episodes for the step after ``state``.

        Args:
            state: progress of the run before the step.
            on_done: callback for each finished episode.
        """
        ...

    def used(self) -> dict[str, float]:
        """Return the sampling usage for the latest batch, by metric name."""
        ...

    def validated(self, episodes: Sequence[Episode]) -> None:
        """Exclude validation episodes from the usage of training steps."""
        ...

    def seconds(self, waited: float) -> float:
        """Return the wall-clock seconds that :meth:`used` covers.

        Args:
            waited: seconds spent in :meth:`collect`.
        """
        ...

    def published(self, state: State) -> None:
        """Handle newly published policy weights, which now match ``state``."""
        ...

    def abandon(self, state: State) -> None:
        """Handle a rollback of the run to ``state``.

        The policies now differ from the policies that sampled the episodes in progress.
        """
        ...

    def write(self, folder: Path) -> None:
        """Save to a checkpoint folder the data needed to resume."""
        ...

    def close(self) -> None:
        """Stop all rollouts in progress."""
        ...


class Synchronous:
    """Source that plays each step's episodes on request."""

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        self._before: dict[str, float] = {}

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Play and return the batch of episodes for the step after ``state``."""
        self._before = dict(self._rollouts.usage())
        drawn, standing = state.tasks_drawn, state.curriculum
        return collect(self._rollouts, self._tasks, state.step, drawn, on_done, standing=standing)

    def used(self) -> dict[str, float]:
        """Return the sampling usage since :meth:`collect` began."""
        return _since(self._before, self._rollouts)

    def validated(self, episodes: Sequence[Episode]) -> None:
        """No-op: validation runs between steps, outside the measured usage."""

    def seconds(self, waited: float) -> float:
        """Return ``waited``, the seconds spent in :meth:`collect`."""
        return waited

    def published(self, state: State) -> None:
        """No-op: no rollout runs in the background."""

    def abandon(self, state: State) -> None:
        """No-op: no rollout runs in the background."""

    def write(self, folder: Path) -> None:
        """No-op: each step starts from an empty batch."""

    def close(self) -> None:
        """No-op: no rollout runs in the background."""


class Ahead:
    """Source that plays groups for later steps during the learner's updates.

    Training steps consume the groups in order of their numbers.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: current progress of the run.
        folder: checkpoint folder with the files of :meth:`write`, if the run resumes.

    Raises:
        ValueError: the saved groups cannot be read.
    """

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task], state: State, folder: Path | None = None) -> None:
        self._rollouts, self._run = rollouts, rollouts.run
        self._draws = Draws.of(rollouts.run, tasks)
        self._producer = Producer(rollouts, self._draws)
        self._next = self._first = state.tasks_drawn  # first group not trained on yet
        self._given_up = 0  # discarded groups from ``_first`` on
        self._passed_over: set[int] = set()  # groups from ``_next`` on that never start: task excluded
        self._step, self._dropped = state.step, 0
        self._standing = state.curriculum
        self._before, self._since = dict(rollouts.usage()), time.perf_counter()
        self._idle = 0.0
        for group in read_groups(folder, tasks, NAME) if folder else ():
            self._producer.put(group)

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Wait for the step's groups and return the batch.

        Groups older than the lag limit are dropped. With dynamic sampling, groups of equal rewards are dropped too.
        Later groups replace the dropped groups.
        """
        assert state.tasks_drawn == self._next, "steps learn from all groups, one after the other"
        began, clock = time.perf_counter(), self._producer.clock
        between, idle = began - self._since, clock.idle() - self._idle
        self._fill()
        rounds, per_step = self._run.algorithm.dynamic_sampling, self._run.rollout.tasks_per_step
        usable, kept, everything = list[Episode](), list[list[Episode]](), list[Group]()
        while len(kept) < per_step and len(everything) - len(kept) < (rounds + 1) * per_step:
            group = self._take()
            if group is None:
                continue
            everything.append(group)
            for episode in group.played:
                on_done(episode)
            usable = group.scored or usable
            if rounds and not told_apart(group.scored, self._run):
                self._give_up()
            else:
                kept.append(group.scored)
        recorded = [episode for group in everything for episode in group.recorded]
        metrics = fork_metrics(recorded) | self._metrics(recorded)
        if rounds:
            metrics["groups_discarded"] = float(len(everything) - len(kept))
        metrics["ahead/learner_idle"] = time.perf_counter() - began
        metrics["ahead/sampler_idle"] = idle
        if between > 0.0:
            metrics["ahead/overlap"] = 1.0 - min(1.0, idle / between)
        return Collection(
            [episode for group in everything for episode in group.played],
            [episode for scored in kept for episode in scored] or alone(usable),
            recorded,
            self._next,
            metrics,
            self._end(),
        )

    def used(self) -> dict[str, float]:
        """Return the sampling usage since the previous batch, without validation episodes."""
        used = _since(self._before, self._rollouts)
        self._before = dict(self._rollouts.usage())
        return used

    def validated(self, episodes: Sequence[Episode]) -> None:
        """Subtract the usage of validation episodes."""
        self._before = added(self._before, taken(episodes))

    def seconds(self, waited: float) -> float:  # noqa: ARG002
        """Return the seconds since the previous batch."""
        before, self._since = self._since, time.perf_counter()
        self._idle = self._producer.clock.idle()
        return self._since - before

    def published(self, state: State) -> None:
        """Start groups for one more step."""
        self._standing = state.curriculum
        self._first, self._given_up, self._step = state.tasks_drawn, 0, state.step
        self._fill()

    def abandon(self, state: State) -> None:
        """Cancel all groups and restart the draws from ``state``."""
        self._dropped += self._producer.end()
        self.published(state)

    def write(self, folder: Path) -> None:
        """Save finished groups not trained on yet.

        Unfinished groups start again when the run resumes.
        """
        write_groups(folder, self._producer.over(), NAME)

    def close(self) -> None:
        """Cancel all groups in progress."""
        self._producer.close()

    def _fill(self) -> None:
        """Start groups up to the lag limit."""
        number = self._next
        while number < self._end():
            if not self._producer.has(number):
                if self._draws.at(number, self._standing or self._draws.begun(), self._rollouts.set_aside)[0]:
                    self._producer.begin(number, self._standing)
                else:
                    self._passed_over.add(number)
            number += 1

    def _end(self) -> int:
        return end_of_room(
            self._first, self._given_up + len(self._passed_over), lag=self._run.rollout.max_policy_lag,
            per_step=self._run.rollout.tasks_per_step, steps_left=self._run.training.steps - self._step,
        )  # fmt: skip

    def _take(self) -> Group | None:
        """Return the next group, or None if the group is excluded or too old."""
        number, self._next = self._next, self._next + 1
        if number in self._passed_over:
            self._passed_over.remove(number)
            self._given_up += 1
            return None
        group = self._producer.take(number)
        if (
            oldest(group.recorded, self._run.trained_policies, self._rollouts.version)
            <= self._run.rollout.max_policy_lag
        ):
            return group
        self._dropped += 1
        self._give_up()
        return None

    def _give_up(self) -> None:
        self._given_up += 1
        self._fill()

    def _metrics(self, recorded: Sequence[Episode]) -> dict[str, float]:
        dropped, self._dropped = self._dropped, 0
        return {
            "policy_lag_max": float(oldest(recorded, self._run.trained_policies, self._rollouts.version)),
            "ahead/waiting": float(len(self._producer.over())),
            "ahead/in_play": float(self._producer.in_play),
            "ahead/dropped": float(dropped),
        }


def _since(before: dict[str, float], rollouts: Rollouts) -> dict[str, float]:
    return {name: count - before.get(name, 0.0) for name, count in rollouts.usage().items()}
