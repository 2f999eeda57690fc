"""Who plays in worker processes has as many attempts live as the recipe says, and a crew that is as it says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.agents.organizations import Chain
from marft.agents.play import keep_rewards
from marft.agents.team import Team
from marft.common.types import Episode
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.workers.worker_pool import GRACE_SECONDS, RetriedRollout, WorkerPool
from marft.rollout.workers.worker_runner import WorkerRolloutRunner
from tests.helpers import settings
from tests.marft.rollout.test_worker_crews import ATTEMPT, Starts


def test_a_crew_is_as_the_recipe_says_and_what_it_sets_aside_is_set_aside_for_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asked(WorkerPool):
        async def start(self, children: object) -> None:
            assert children == ["a worker"]

    rollouts = WorkerRolloutRunner.__new__(WorkerRolloutRunner)
    rollouts.run = settings("tiny", "runs", "--rollout.max_retries", "6", "--rollout.timeout_seconds", "11")
    rollouts.excluded_tasks, rollouts._launcher = {}, Starts()
    rollouts.engine = cast("Any", "the engine")
    rollouts._samplers = cast("Any", SimpleNamespace(renderer=SimpleNamespace(formats={})))
    monkeypatch.setattr("marft.rollout.workers.worker_runner.WorkerPool", Asked)
    crew = asyncio.run(rollouts._start_pool(b"", cast("Any", ["a worker"])))
    assert (crew.max_retries, crew.timeout_seconds, crew.engine) == (6, 11.0 + GRACE_SECONDS, "the engine")
    assert crew.launcher is rollouts._launcher
    assert crew.excluded_tasks is rollouts.excluded_tasks


class TestTheGate:
    def test_as_many_attempts_are_live_as_the_run_may_have_over_all_that_is_played_at_a_time(self) -> None:
        live, most = set[RetriedRollout](), list[int]()

        async def play(tried: RetriedRollout) -> None:
            live.add(tried)
            most.append(len(live))
            await asyncio.sleep(0.001)
            live.remove(tried)

        async def episode(tried: RetriedRollout) -> Episode:
            return Episode(tried.attempt.task, "train/0", 0, (), "terminated")

        async def nothing() -> None: ...

        async def whole() -> None:
            rollouts = WorkerRolloutRunner.__new__(WorkerRolloutRunner)
            rollouts._gate = asyncio.Semaphore(2)
            rollouts.team = team = Team((), Chain())
            rollouts._pool = cast("Any", SimpleNamespace(play_until_ended=play, wait_for_episode=episode))
            rollouts.engine = cast("Any", SimpleNamespace(wait_idle=nothing))
            await asyncio.gather(*(rollouts._play([ATTEMPT] * 3, team, lambda _: None) for _ in range(3)))

        asyncio.run(whole())
        assert (len(most), max(most)) == (9, 2)

    def test_so_it_is_in_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gates: list[object] = []

        async def play_all(_: object, __: object, gate: object, *___: object) -> list[Episode]:
            gates.append(gate)
            return []

        async def nothing() -> None: ...

        async def whole() -> None:
            rollouts = LocalRolloutRunner.__new__(LocalRolloutRunner)
            rollouts._gate = gate = asyncio.Semaphore(2)
            rollouts.engine = cast("Any", SimpleNamespace(wait_idle=nothing))
            for _ in range(2):
                await rollouts._play_game(cast("Any", None), [ATTEMPT], lambda _: None, keep_rewards)
            assert gates == [gate] * 2

        monkeypatch.setattr("marft.rollout.local_runner.play_all", play_all)
        asyncio.run(whole())
