"""A run that goes on opens what it had played, and what is learned from again is recorded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from marft.config import RunSettings
from marft.rollout.async_rollout.sources import RolloutSource, open_source
from marft.rollout.runner import RolloutRunner
from marft.runs.state import State
from tests.playing_ahead import TASKS, FakeRollouts, ahead_of, fake, next_step

CHAIN = ("--algorithm", "{name = 'marft'}")  # whose credit compares no attempts


def opened(run: RunSettings, state: State, folder: Path | None = None) -> tuple[RolloutSource, FakeRollouts]:
    rollouts = fake(run)
    rollouts.now = state.step
    return open_source(cast("RolloutRunner", rollouts), TASKS, state, folder), rollouts


def steps(run: RunSettings, count: int) -> tuple[RolloutSource, State, list[Any]]:
    gathering, rollouts = opened(run, State())
    state, found = State(), []
    for _ in range(count):
        state, collection = next_step(gathering, rollouts, state)
        found.append(collection)
    return gathering, state, found


@pytest.mark.parametrize(("lag", "reuse"), [(1, 1), (1, 2), (2, 3)])
def test_a_run_that_goes_on_has_what_it_had_played(tmp_path: Path, lag: int, reuse: int) -> None:
    run = ahead_of(lag, "--rollout.reuse", str(reuse), *CHAIN)
    gathering, state, _ = steps(run, 5)
    gathering.save(tmp_path)
    again, rollouts = opened(run, state, tmp_path)
    _, collection = next_step(again, rollouts, state)
    assert len(rollouts.begun) == 2 * 1  # of the step that there is room for now; all before had been played
    assert collection.metrics["policy_lag_max"] == lag + reuse - 1
    assert collection.metrics.get("reused_episodes", 0.0) == 4 * (reuse - 1)


def test_an_episode_is_recorded_in_its_own_step_alone_and_learned_from_in_others_too() -> None:
    _, _, found = steps(ahead_of(1, "--rollout.reuse", "2", *CHAIN), 4)
    recorded = [episode.name for collection in found for episode in collection.recorded]
    assert len(set(recorded)) == len(recorded) == 4 * 4
    learned = [episode.name for collection in found for episode in collection.training_episodes]
    assert [learned.count(name) for name in recorded] == [2] * 12 + [1] * 4
    assert [len(collection.episodes) for collection in found] == [4] * 4
