"""Who plays in worker processes has as many attempts live as the recipe says, and a crew that is as it says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.agents.rollout import as_it_is
from marft.common.types import Episode
from marft.rollout.rollouts import LocalRollouts
from marft.rollout.workers.crew import GRACE_SECONDS, Crew
from marft.rollout.workers.rollouts import WorkerRollouts
from marft.rollout.workers.tried import Tried
from tests.helpers import settings
from tests.marft.rollout.test_worker_crews import ATTEMPT, Starts


def test_a_crew_is_as_the_recipe_says_and_what_it_sets_aside_is_set_aside_for_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asked(Crew):
        async def start(self, children: object) -> None:
            assert children == ["a worker"]

    rollouts = WorkerRollouts.__new__(WorkerRollouts)
    rollouts.run = settings("tiny", "runs", "--rollout.tries", "7", "--rollout.timeout_seconds", "11")
    rollouts.set_aside, rollouts._starter = {}, Starts()
    rollouts._engine = cast("Any", "the engine")
    rollouts._samplers = cast("Any", SimpleNamespace(renderer=SimpleNamespace(formats={})))
    monkeypatch.setattr("marft.rollout.workers.rollouts.Crew", Asked)
    crew = asyncio.run(rollouts._begin(b"", cast("Any", ["a worker"])))
    assert (crew.tries, crew.patience, crew.engine) == (7, 11.0 + GRACE_SECONDS, "the engine")
    assert crew.starter is rollouts._starter
    assert crew.set_aside is rollouts.set_aside


class TestTheGate:
    def test_as_many_attempts_are_live_as_the_run_may_have_over_all_that_is_played_at_a_time(self) -> None:
        live, most = set[Tried](), list[int]()

        async def play(tried: Tried) -> None:
            live.add(tried)
            most.append(len(live))
            await asyncio.sleep(0.001)
            live.remove(tried)

        async def episode(tried: Tried) -> Episode:
            return Episode(tried.attempt.task, "train/0", 0, (), "terminated")

        async def nothing() -> None: ...

        async def whole() -> None:
            rollouts = WorkerRollouts.__new__(WorkerRollouts)
            rollouts._gate = asyncio.Semaphore(2)
            rollouts._crew = cast("Any", SimpleNamespace(play=play, episode=episode))
            rollouts._engine = cast("Any", SimpleNamespace(settle=nothing))
            await asyncio.gather(*(rollouts._play([ATTEMPT] * 3, b"", lambda _: None) for _ in range(3)))

        asyncio.run(whole())
        assert (len(most), max(most)) == (9, 2)

    def test_so_it_is_in_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gates: list[object] = []

        async def play_all(_: object, __: object, gate: object, *___: object) -> list[Episode]:
            gates.append(gate)
            return []

        async def nothing() -> None: ...

        async def whole() -> None:
            rollouts = LocalRollouts.__new__(LocalRollouts)
            rollouts._gate = gate = asyncio.Semaphore(2)
            rollouts.compose = as_it_is
            rollouts.engine = cast("Any", SimpleNamespace(settle=nothing))
            for _ in range(2):
                await rollouts._play(cast("Any", None), [ATTEMPT], lambda _: None)
            assert gates == [gate] * 2

        monkeypatch.setattr("marft.rollout.rollouts.play_all", play_all)
        asyncio.run(whole())
