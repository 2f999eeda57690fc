"""Groups that are played ahead of a learner, by nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from marft.agents.game import Attempt
from marft.common.types import Episode, Fork, Observation, Task, Transition, VersionRange
from marft.config import RunSettings
from marft.rollout.async_rollout.sources import AsyncRolloutSource
from marft.rollout.runner import RolloutRunner
from marft.runs.state import State
from tests.episodes import make_action
from tests.helpers import settings

TASKS = [Task(f"t{n}", "o", {"answer": n}) for n in range(5)]
PROCESS = ("--engine.kind", "process")


def ahead_of(lag: int, *overrides: str, steps: int = 50) -> RunSettings:
    return settings(
        "tiny", "runs", *PROCESS, "--rollout.max_policy_lag", str(lag), "--training.steps", str(steps), *overrides
    )


class FakeBegun:
    def __init__(self) -> None:
        self.outcome: Future[list[Episode]] = Future()

    def cancel(self) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(CancelledError())


class FakeRollouts:
    """Plays what is begun when it is told to; every action is of the version at which its group was begun."""

    def __init__(self, run: RunSettings, pay: Callable[[Attempt], float] = lambda attempt: attempt.sample) -> None:
        self.run, self.pay, self.now = run, pay, 0
        self.begun: list[tuple[Sequence[Attempt], FakeBegun, int]] = []
        self.at_once, self.excluded_tasks = True, dict[str, str]()

    def play_in_background(self, attempts: Sequence[Attempt]) -> FakeBegun:
        begun = FakeBegun()
        self.begun.append((attempts, begun, self.now))
        if self.at_once:
            self.finish(len(self.begun) - 1)
        return begun

    def finish(self, number: int) -> None:
        attempts, begun, version = self.begun[number]
        if not begun.outcome.done():
            begun.outcome.set_result([self.episode(attempt, version) for attempt in attempts])

    def episode(self, attempt: Attempt, version: int) -> Episode:
        action = make_action("actor", task=attempt.task.id, sample=attempt.sample)
        action = replace(
            action, key=action.key._replace(stream=attempt.stream), versions=VersionRange(version, version),
            state=np.array([3], np.int32),
        )  # fmt: skip
        earned = (Transition(Observation("o"), float(self.pay(attempt))),)
        fork = Fork("root", action.id) if attempt.replay else None
        return Episode(attempt.task, attempt.stream, attempt.sample, (action,), "terminated", earned, fork=fork)

    def end(self, begun: Sequence[FakeBegun]) -> None:
        for one in begun:
            one.cancel()

    def version(self, _: str) -> int:
        return self.now

    def usage(self) -> dict[str, float]:
        return {"sampled_tokens": float(len(self.begun))}

    @property
    def numbers(self) -> list[str]:
        return [attempts[0].task.id for attempts, _, _ in self.begun]


def fake(run: RunSettings, **options: Any) -> FakeRollouts:
    return FakeRollouts(run, **options)


def ahead(rollouts: FakeRollouts, state: State | None = None, folder: Path | None = None) -> AsyncRolloutSource:
    return AsyncRolloutSource(cast("RolloutRunner", rollouts), TASKS, state or State(), folder)


def next_step(gathering: Any, rollouts: FakeRollouts, state: State) -> tuple[State, Any]:
    """What a training step does with it."""
    collection = gathering.collect(state, lambda _: None)
    state = replace(state, step=state.step + 1, tasks_drawn=collection.tasks_drawn)
    rollouts.now = state.step
    gathering.on_publish(state)
    return state, collection
