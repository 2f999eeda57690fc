"""Where a training step's episodes come from: played for it, or, with ``rollout.max_policy_lag``, ahead of it."""

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

NAME = "ahead"  # of what is written
OnDone = Callable[[Episode], None]


class Gathering(Protocol):
    """Gathers what training steps learn from. Close it."""

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """The episodes of the step that comes after ``state``.

        Args:
            on_done: is told of them.
        """
        ...

    def used(self) -> dict[str, float]:
        """What sampling has taken for them, by the name of a metric."""
        ...

    def validated(self, episodes: Sequence[Episode]) -> None:
        """These were played beside what steps learn from."""
        ...

    def seconds(self, waited: float) -> float:
        """In which that was.

        Args:
            waited: while they were collected.
        """
        ...

    def published(self, state: State) -> None:
        """The policies are those of ``state`` now."""
        ...

    def abandon(self, state: State) -> None:
        """The policies are others than those that episodes were played with: the run has gone back, and is at
        ``state``."""
        ...

    def write(self, folder: Path) -> None:
        """Write what a run that goes on needs."""
        ...

    def close(self) -> None: ...


class Synchronous:
    """Plays a step's episodes when it comes, and nothing else."""

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task]) -> None:
        self._rollouts, self._tasks = rollouts, tasks
        self._before: dict[str, float] = {}

    def collect(self, state: State, on_done: OnDone) -> Collection:
        self._before = dict(self._rollouts.usage())
        drawn, standing = state.tasks_drawn, state.curriculum
        return collect(self._rollouts, self._tasks, state.step, drawn, on_done, standing=standing)

    def used(self) -> dict[str, float]:
        return _since(self._before, self._rollouts)

    def validated(self, episodes: Sequence[Episode]) -> None:
        """Between the steps, where nothing is counted."""

    def seconds(self, waited: float) -> float:
        return waited

    def published(self, state: State) -> None:
        """Nothing is played."""

    def abandon(self, state: State) -> None:
        """Nothing was."""

    def write(self, folder: Path) -> None:
        """The next step begins with nothing."""

    def close(self) -> None:
        """Nothing was started."""


class Ahead:
    """Has the groups of later steps played while the learner steps, in the order in which they are learned from.

    Args:
        state: where the run stands.
        folder: what :meth:`write` has written, where the run goes on.

    Raises:
        ValueError: what was written cannot be read.
    """

    def __init__(self, rollouts: Rollouts, tasks: Sequence[Task], state: State, folder: Path | None = None) -> None:
        self._rollouts, self._run = rollouts, rollouts.run
        self._draws = Draws.of(rollouts.run, tasks)
        self._producer = Producer(rollouts, self._draws)
        self._next = self._first = state.tasks_drawn  # the first group that nobody has learned from
        self._given_up = 0  # of those from ``_first`` on
        self._passed_over: set[int] = set()  # groups from ``_next`` on that are never begun: their tasks are set aside
        self._step, self._dropped = state.step, 0
        self._standing = state.curriculum
        self._before, self._since = dict(rollouts.usage()), time.perf_counter()
        self._idle = 0.0
        for group in read_groups(folder, tasks, NAME) if folder else ():
            self._producer.put(group)

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Wait for the step's groups. Those that are too old are dropped, and where groups of equal rewards are drawn
        again, so are those; others come in their place."""
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
        """Since the last step's groups were there, without what the episodes of validations took."""
        used = _since(self._before, self._rollouts)
        self._before = dict(self._rollouts.usage())
        return used

    def validated(self, episodes: Sequence[Episode]) -> None:
        self._before = added(self._before, taken(episodes))

    def seconds(self, waited: float) -> float:  # noqa: ARG002
        """Since the last step's groups were there."""
        before, self._since = self._since, time.perf_counter()
        self._idle = self._producer.clock.idle()
        return self._since - before

    def published(self, state: State) -> None:
        """There is room for another step's groups."""
        self._standing = state.curriculum
        self._first, self._given_up, self._step = state.tasks_drawn, 0, state.step
        self._fill()

    def abandon(self, state: State) -> None:
        """Cancel the unfinished groups; tasks are drawn again from where the state has drawn to."""
        self._dropped += self._producer.end()
        self.published(state)

    def write(self, folder: Path) -> None:
        """Write the groups that were played and not learned from; those that are in play are begun again."""
        write_groups(folder, self._producer.over(), NAME)

    def close(self) -> None:
        """Let go of what is in play."""
        self._producer.close()

    def _fill(self) -> None:
        """Start as many groups as the limit on the lag allows."""
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
        """The next group; None where it is passed over, or too old."""
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
