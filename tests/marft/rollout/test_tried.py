"""What ends worker processes is found and set aside, and nothing that was beside it; all else is played, once."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.agents.play import run_bounded
from marft.common.errors import RunError
from marft.common.types import Episode, Task
from marft.config.interfaces.engine import Sampler
from marft.rollout.workers import worker_pool as crews
from marft.rollout.workers.messages import StartWorker
from marft.rollout.workers.worker_connection import ActiveAttempt, WorkerLostError
from marft.rollout.workers.worker_pool import RetriedRollout, WorkerPool

MAX_RETRIES = 1


class World:
    """Workers whose episodes take some passes of the loop; some of them end the worker, as does chance."""

    def __init__(self, poison: set[str], kills: int, seed: int) -> None:
        self.poison, self.kills, self.random, self.chance = poison, kills, random.Random(seed), 0.2
        self.made: list[Worker] = []
        self.ended = Counter[str]()  # episodes that came to their end, by task
        self.companies: list[int] = []  # at every death

    def link(self, child: Any, *_: object) -> Worker:
        self.made.append(Worker(self, child))
        return self.made[-1]


class Worker:
    """A link, as a crew uses it."""

    def __init__(self, world: World, child: Any) -> None:
        self.world, self.child, self.ready, self.usage = world, child, False, dict[str, float]()
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.playing: dict[ActiveAttempt, asyncio.Task[None]] = {}

    async def start(self, _: StartWorker) -> None:
        await asyncio.sleep(0)
        self.ready = True

    @property
    def live_count(self) -> int:
        return len(self.playing)

    @property
    def max_concurrent(self) -> float:
        return min((playing.max_concurrent for playing in self.playing), default=math.inf)

    def play(self, attempt: Attempt, team: bytes, most: float) -> ActiveAttempt:
        loop = asyncio.get_running_loop()
        playing = ActiveAttempt(attempt, loop.create_future(), loop.create_future(), most)
        self.playing[playing] = asyncio.create_task(self._play(playing))
        assert self.live_count <= self.max_concurrent
        return playing

    async def _play(self, playing: ActiveAttempt) -> None:
        for _ in range(self.world.random.randrange(6)):
            await asyncio.sleep(0)
        if self.world.kills and self.world.random.random() < self.world.chance:
            self.world.kills -= 1
            self.die()
        elif playing.attempt.task.id in self.world.poison:
            self.die()
        elif self.ready:
            playing.ended.set_result(None)
            await asyncio.sleep(0)
            if self.ready:
                del self.playing[playing]
                self.world.ended[f"{playing.attempt.task.id}#{playing.attempt.sample}"] += 1
                task = playing.attempt.task
                playing.set_episode(Episode(task, "s", playing.attempt.sample, (), "terminated"))

    def die(self) -> None:
        if self.ready:
            self.ready = False
            self.world.companies.append(self.live_count)
            for playing in self.playing:
                playing.set_error(WorkerLostError("failed", "it was killed", self.live_count))
            self.playing.clear()
            self.exited.set_result("was killed")

    def send_heartbeat(self) -> None: ...

    async def end(self) -> None: ...


class Starts:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def start(self, name: str, command: object, *, quiet: bool = False, slot: int = 0) -> Any:
        if self.fails:
            raise RunError(f"{name}: no room")
        return type("ProcessHandle", (), {"name": name, "end": lambda self: None})()

    def close(self) -> None: ...


def played(
    world: World, attempts: list[Attempt], workers: int, live: int, patch: pytest.MonkeyPatch, *, fails: bool = False,
    max_retries: int = MAX_RETRIES,
) -> tuple[list[Episode], WorkerPool]:  # fmt: skip
    patch.setattr(crews, "WorkerConnection", world.link)

    async def whole() -> tuple[list[Episode], WorkerPool]:
        starter = Starts()
        crew = WorkerPool(StartWorker(b"", b"", 0), cast("Sampler", None), 1.0, starter, max_retries, {})
        await crew.start([starter.start(f"worker {number}", None) for number in range(workers)])
        starter.fails = fails

        async def begin(attempt: Attempt) -> RetriedRollout:
            tried = RetriedRollout(attempt, b"")
            await crew.play_until_ended(tried)
            return tried

        try:
            episodes = await run_bounded(
                asyncio.Semaphore(live), attempts, begin, crew.wait_for_episode, lambda _: None
            )
            while fails and not crew._failed_workers:
                await asyncio.sleep(0.001)
            return episodes, crew
        finally:
            await crew.end()

    return asyncio.run(asyncio.wait_for(whole(), 60.0))


def some(tasks: int, samples: int) -> list[Attempt]:
    return [Attempt(Task(f"t{n}", "begin"), "s", sample) for n in range(tasks) for sample in range(samples)]


class TestSettingAside:
    @given(
        st.sets(st.integers(0, 9), max_size=3), st.integers(1, 4), st.integers(1, 20), st.integers(1, 3),
        st.integers(0, 2**31),
    )  # fmt: skip
    def test_what_ends_workers_is_set_aside_and_nothing_else(
        self, poison: set[int], workers: int, live: int, samples: int, seed: int
    ) -> None:
        world = World({f"t{number}" for number in poison}, 0, seed)
        attempts = some(10, samples)
        with pytest.MonkeyPatch.context() as patch:
            episodes, crew = played(world, attempts, workers, live, patch)
        assert set(crew.excluded_tasks) == world.poison
        assert [(e.task.id, e.sample) for e in episodes] == [(a.task.id, a.sample) for a in attempts]
        assert {e.task.id for e in episodes if e.status == "failed"} == world.poison
        assert all(e.status == ("failed" if e.task.id in world.poison else "terminated") for e in episodes)
        assert set(world.ended.values()) <= {1}
        assert crew.lost_count == len(world.companies)
        halvings = math.ceil(math.log2(live + 1)) + 1
        assert crew.lost_count <= len(poison) * samples * (halvings + 1 + MAX_RETRIES)

    @given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31))
    def test_kills_by_chance_lose_no_episode_and_play_none_twice(
        self, workers: int, live: int, kills: int, seed: int
    ) -> None:
        """One that is hit 1 + ``rollout.max_retries`` times while it is alone is taken for what ended its workers."""
        world = World(set(), kills, seed)
        with pytest.MonkeyPatch.context() as patch:
            episodes, crew = played(world, some(6, 2), workers, live, patch)
        ended = {e.name for e in episodes if e.status == "terminated"}
        assert len(ended) == sum(world.ended.values()) == len(world.ended)
        assert {e.task.id for e in episodes if e.status != "terminated"} <= set(crew.excluded_tasks)
        assert world.companies.count(1) >= (1 + MAX_RETRIES) * len(crew.excluded_tasks)
        assert crew.lost_count <= kills

    def test_where_nobody_is_lost_the_least_busy_worker_plays_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(set(), 0, 0)
        episodes, crew = played(world, some(4, 2), 2, 8, monkeypatch)
        assert {episode.status for episode in episodes} == {"terminated"}
        assert crew.usage() == {"workers_lost": 0.0, "episodes_retried": 0.0, "tasks_excluded": 0.0}

    def test_the_reason_says_how_often_and_how(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (episode,), crew = played(World({"t0"}, 0, 0), some(1, 1), 1, 1, monkeypatch)
        assert episode.error == (
            "its task is set aside for the rest of the run: 2 worker processes, one after the other, ended with "
            "nothing else in it; it was killed"
        )
        assert crew.usage() == {"workers_lost": 2.0, "episodes_retried": 1.0, "tasks_excluded": 1.0}

    def test_without_retries_the_first_process_that_it_ends_alone_is_the_last(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (episode,), crew = played(World({"t0"}, 0, 0), some(1, 1), 1, 1, monkeypatch, max_retries=0)
        assert "a worker process ended with nothing else in it" in episode.error
        assert crew.usage() == {"workers_lost": 1.0, "episodes_retried": 0.0, "tasks_excluded": 1.0}

    def test_other_attempts_at_what_was_set_aside_end_no_more_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        episodes, crew = played(World({"t0"}, 0, 0), some(1, 4), 1, 1, monkeypatch)
        assert crew.lost_count == 1 + MAX_RETRIES
        assert {(episode.status, episode.error) for episode in episodes} == {("failed", crew.excluded_tasks["t0"])}


class TestPlaces:
    def test_one_that_cannot_be_filled_is_given_up_while_another_is_left(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = World(set(), 1, 3)
        world.chance = 1.0
        episodes, crew = played(world, some(6, 2), 2, 4, monkeypatch, fails=True)
        assert crew.lost_count == 1
        assert {episode.status for episode in episodes} == {"terminated"}
        assert "was lost and cannot be started again: worker" in caplog.text
        assert "the run goes on with 1" in caplog.text

    def test_the_last_one_that_cannot_be_filled_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(RunError, match="worker 0 was lost and cannot be started again: worker 0: no room"):
            played(World({"t0"}, 0, 0), some(3, 1), 1, 3, monkeypatch, fails=True)
