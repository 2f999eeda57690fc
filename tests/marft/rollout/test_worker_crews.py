"""Who fills the places of lost workers, who plays what, and what is let go of when nobody needs it any more."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.agents.channels import Last
from marft.agents.game import Attempt
from marft.agents.organizations import Chain
from marft.agents.team import Team
from marft.common.errors import RunError
from marft.common.processes.launcher import LocalLauncher, NoResourcesError
from marft.common.processes.supervisor import MAX_STARTS
from marft.common.types import Episode, Task
from marft.config.interfaces.engine import Sampler
from marft.rollout.workers import worker as workers
from marft.rollout.workers import worker_pool as crews
from marft.rollout.workers.client import SamplerClient
from marft.rollout.workers.messages import AttemptsCanceled, ChangeTeam, StartWorker
from marft.rollout.workers.worker import Worker
from marft.rollout.workers.worker_connection import ActiveAttempt
from marft.rollout.workers.worker_pool import RetriedRollout, WorkerPool
from marft.rollout.workers.worker_runner import WorkerRolloutRunner
from tests.helpers import until

ATTEMPT = Attempt(Task("t/0", "begin"), "train/0")
NOTHING_LOST = {"workers_lost": 0.0, "episodes_retried": 0.0, "tasks_excluded": 0.0}


class FakeLink:
    """A worker that a test starts, busies and loses."""

    made: list[FakeLink]
    failures = 0  # how many of those that come next end before they have begun

    def __init__(self, child: Any, *given: object) -> None:
        self.given, self.called_off, self.ticks = given, 0, 0
        self.child, self.ready, self.live_count, self.max_concurrent, self.usage = (
            child,
            False,
            0,
            math.inf,
            dict[str, float](),
        )
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.played = ActiveAttempt(ATTEMPT, loop.create_future(), loop.create_future())
        FakeLink.made.append(self)

    async def start(self, _: StartWorker) -> None:
        await asyncio.sleep(0.001)
        if FakeLink.failures:
            FakeLink.failures -= 1
            self.exited.set_result("ended itself")
            raise RunError("it ended itself before it had begun")
        self.ready = True

    def play(self, *_: object) -> ActiveAttempt:
        self.live_count += 1
        return self.played

    def send_heartbeat(self) -> None:
        self.ticks += 1

    async def end(self) -> None: ...

    async def cancel(self) -> None:
        self.called_off += 1
        self.max_concurrent = math.inf

    def lose(self) -> None:
        self.ready = False
        self.exited.set_result("was killed")


class Starts(LocalLauncher):
    """Starts nothing."""

    fails = full = False
    ended = 0

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = []  # where workers were started

    def start(self, name: str, *_: object, slot: int = 0, **__: object) -> Any:
        self.places.append((name, slot))
        if self.full:
            raise NoResourcesError(f"no node has room for {name}")
        if self.fails:
            raise OSError(f"{name}: too many processes")
        return SimpleNamespace(name=name, end=self.end)

    def end(self) -> None:
        self.ended += 1


def crewed(
    test: Callable[[WorkerPool, Starts], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, count: int = 1
) -> Starts:
    FakeLink.made, FakeLink.failures = [], 0
    monkeypatch.setattr(crews, "WorkerConnection", FakeLink)
    starts = Starts()

    async def whole() -> None:
        crew = WorkerPool(StartWorker(b"", b"", 0), cast("Sampler", None), 1.0, starts, 2, {})
        await crew.start([starts.start(f"worker {n}") for n in range(count)])
        try:
            await test(crew, starts)
        finally:
            await crew.end()

    asyncio.run(asyncio.wait_for(whole(), 10.0))
    return starts


class TestCrew:
    def test_what_a_lost_worker_used_is_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            FakeLink.made[0].usage = {"x": 2.0}
            assert crew.usage() == {"x": 2.0, **NOTHING_LOST}
            FakeLink.made[0].lose()
            await asyncio.sleep(0.05)
            FakeLink.made[1].usage = {"x": 1.0}
            assert crew.usage() == {"x": 3.0, **NOTHING_LOST, "workers_lost": 1.0}

        crewed(test, monkeypatch)

    def test_nor_is_it_counted_again_where_no_process_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, starts: Starts) -> None:
            starts.fails = True
            FakeLink.made[0].usage = {"x": 2.0}
            FakeLink.made[0].lose()
            with pytest.raises(OSError, match="too many processes"):
                await crew.play_until_ended(RetriedRollout(ATTEMPT, b""))
            assert crew.usage() == {"x": 2.0, **NOTHING_LOST, "workers_lost": 1.0}

        crewed(test, monkeypatch)

    def test_who_plays_least_plays_next_and_it_counts_until_it_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            one, other = FakeLink.made
            one.live_count = 1
            playing = asyncio.create_task(crew.play_until_ended(tried := RetriedRollout(ATTEMPT, b"")))
            await asyncio.sleep(0.001)
            assert (one.live_count, other.live_count, playing.done()) == (1, 1, False)
            other.played.ended.set_result(None)
            await playing
            assert tried.active is other.played

        crewed(test, monkeypatch, count=2)

    def test_an_attempt_waits_for_a_place_to_be_filled_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            FakeLink.failures = MAX_STARTS - 1
            FakeLink.made[0].lose()
            playing = asyncio.create_task(crew.play_until_ended(RetriedRollout(ATTEMPT, b"")))
            await asyncio.sleep(0.2)
            assert [link.live_count for link in FakeLink.made] == [*[0] * MAX_STARTS, 1]
            assert crew.lost_count == 1
            FakeLink.made[-1].played.ended.set_result(None)
            await playing

        crewed(test, monkeypatch)

    def test_all_workers_take_of_what_the_run_has_also_those_that_come_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            FakeLink.made[0].lose()
            await asyncio.sleep(0.05)
            assert len(FakeLink.made) == 3
            assert {link.given for link in FakeLink.made} == {(crew.engine, crew._leases, crew.timeout_seconds)}

        crewed(test, monkeypatch, count=2)

    def test_a_worker_comes_to_the_place_of_the_one_that_was_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(_: WorkerPool, starts: Starts) -> None:
            starts.places.clear()
            FakeLink.made[1].lose()
            await asyncio.sleep(0.05)
            assert starts.places == [("worker 1", 1)]

        crewed(test, monkeypatch, count=2)

    def test_where_there_is_no_room_for_it_that_is_said_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, starts: Starts) -> None:
            starts.places.clear()
            starts.full = True
            FakeLink.made[0].lose()
            with pytest.raises(RunError, match="worker 0 was lost and cannot be started again: no node has room"):
                await crew.play_until_ended(RetriedRollout(ATTEMPT, b""))
            assert len(starts.places) == 1

        crewed(test, monkeypatch)

    def test_while_another_place_is_left_an_attempt_waits_for_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, starts: Starts) -> None:
            lost, left = FakeLink.made
            starts.full, left.live_count = True, 1
            lost.lose()
            await asyncio.sleep(0.05)
            assert len(crew._failed_workers) == 1
            alone = asyncio.create_task(crew.play_until_ended(RetriedRollout(ATTEMPT, b"", max_concurrent=1)))
            await asyncio.sleep(0.001)
            assert not alone.done()
            left.live_count = 0
            await crew.cancel()  # as nothing else in here says that there is room
            left.played.ended.set_result(None)
            await asyncio.wait_for(alone, 1.0)

        crewed(test, monkeypatch, count=2)

    def test_it_has_as_long_to_begin_as_it_takes_and_must_answer_from_then_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(_: WorkerPool, __: Starts) -> None:
            beginning, other = FakeLink.made
            beginning.ready = False
            await asyncio.sleep(0.05)
            assert beginning.ticks == 0 < other.ticks

        monkeypatch.setattr(crews, "HEARTBEAT_SECONDS", 0.001)
        crewed(test, monkeypatch, count=2)

    def test_an_attempt_that_may_have_no_company_waits_for_the_rewards_of_what_is_beside_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            (link,), one = FakeLink.made, FakeLink.made[0].played
            first = asyncio.create_task(crew.play_until_ended(RetriedRollout(ATTEMPT, b"")))
            await asyncio.sleep(0)
            alone = asyncio.create_task(crew.play_until_ended(RetriedRollout(ATTEMPT, b"", max_concurrent=1)))
            await asyncio.sleep(0.001)
            one.ended.set_result(None)
            await first
            await asyncio.sleep(0.001)
            assert (link.live_count, alone.done()) == (1, False)
            link.live_count, link.played = 0, ActiveAttempt(ATTEMPT, asyncio.Future(), asyncio.Future())
            one.episode.set_result(Episode(ATTEMPT.task, "train/0", 0, (), "terminated"))
            await asyncio.sleep(0.001)
            assert link.live_count == 1
            link.played.ended.set_result(None)
            await alone

        crewed(test, monkeypatch)

    def test_an_attempt_waits_while_workers_let_go_of_what_was_called_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            (link,) = FakeLink.made
            link.max_concurrent = 0
            playing = asyncio.create_task(crew.play_until_ended(RetriedRollout(ATTEMPT, b"")))
            await asyncio.sleep(0.01)
            assert link.live_count == 0
            await crew.cancel()
            await asyncio.sleep(0.01)
            assert (link.live_count, link.called_off) == (1, 1)
            link.played.ended.set_result(None)
            await playing

        crewed(test, monkeypatch)

    def test_a_place_that_cannot_be_filled_again_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: WorkerPool, _: Starts) -> None:
            FakeLink.failures = 99
            FakeLink.made[0].lose()
            with pytest.raises(RunError, match="worker 0 was lost and cannot be started again: it ended itself"):
                await crew.play_until_ended(RetriedRollout(ATTEMPT, b""))
            assert len(FakeLink.made) == 1 + MAX_STARTS

        crewed(test, monkeypatch)

    def test_a_process_that_is_started_while_the_run_ends_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        starting, going_on = threading.Event(), threading.Event()

        async def test(_: WorkerPool, starts: Starts) -> None:
            def slow(name: str, *_: object, **__: object) -> Any:
                starting.set()
                going_on.wait(5.0)
                return SimpleNamespace(name=name, end=starts.end)

            monkeypatch.setattr(starts, "start", slow)
            FakeLink.made[0].lose()
            await asyncio.to_thread(starting.wait, 5.0)
            asyncio.get_running_loop().call_later(0.05, going_on.set)

        starts = crewed(test, monkeypatch)
        until(lambda: starts.ended == 1, 5.0)
        assert len(FakeLink.made) == 1


class TestTeams:
    """The recipe's own organization and channel are in every worker; others travel."""

    def test_only_what_is_not_the_recipes_is_sent(self) -> None:
        rollouts = WorkerRolloutRunner.__new__(WorkerRolloutRunner)
        rollouts.team = own = Team((), Chain(), Last())
        for team, sent in (
            (own, ((), None, None)),
            (replace(own, organization=Chain()), ((), Chain(), None)),
            (replace(own, channel=Last()), ((), None, Last())),
        ):
            assert pickle.loads(rollouts._pickle_team(team)) == sent

    def test_what_is_sent_takes_the_place_of_the_recipes_own_until_the_next_team(self) -> None:
        worker = Worker.__new__(Worker)
        own = Team((), Chain(), Last())
        worker.parts = cast("Any", SimpleNamespace(game=SimpleNamespace(team=own)))
        worker.team = own
        for organization, channel in ((Chain(), None), (None, Last()), (None, None)):
            worker._handle_message(ChangeTeam(pickle.dumps(((), organization, channel))))
            team = worker.team
            assert (team.organization is own.organization) == (organization is None)
            assert (team.channel is own.channel) == (channel is None)


class TestCallingOff:
    def test_what_goes_wrong_in_one_episode_calls_off_all_others_before_it_is_raised(self) -> None:
        done: list[str] = []

        async def play(_: RetriedRollout) -> None:
            raise ValueError("task 'odd' cannot be sent")

        async def noted(what: str) -> None:
            done.append(what)

        rollouts = WorkerRolloutRunner.__new__(WorkerRolloutRunner)
        rollouts._gate, rollouts.team = asyncio.Semaphore(2), Team((), Chain())
        rollouts._pool = cast("Any", SimpleNamespace(play_until_ended=play, wait_for_episode=None, cancel=lambda: noted("called off"),
                                                     usage=lambda: {"x": 1.0, "workers_lost": 0.0}))  # fmt: skip
        rollouts.engine = cast("Any", SimpleNamespace(wait_idle=lambda: noted("settled"), usage=lambda: {"x": 2.0}))
        with pytest.raises(ValueError, match="cannot be sent"):
            asyncio.run(rollouts._play([ATTEMPT, ATTEMPT], rollouts.team, lambda _: None))
        assert done == ["called off", "settled"]
        assert rollouts.usage() == {"x": 3.0, "workers_lost": 0.0}

    def test_a_worker_ends_what_models_wrote_so_that_nobody_waits_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def whole() -> list[Any]:
            sent, ended = list[Any](), asyncio.Event()

            async def play() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    await ended.wait()  # as an episode waits for the code that it runs

            monkeypatch.setattr(workers, "terminate_all", ended.set)
            worker = Worker.__new__(Worker)
            worker.client, worker.team = SamplerClient(sent.append, ()), cast("Team", None)
            worker.stream = cast("Any", SimpleNamespace(send=sent.append))
            worker.parts = cast("Any", SimpleNamespace(usage=lambda: {"x": 1.0}))
            worker._attempts = {asyncio.create_task(play())}
            await asyncio.sleep(0)
            await asyncio.wait_for(worker._cancel_attempts(), 5.0)
            return sent

        assert asyncio.run(whole()) == [AttemptsCanceled({"x": 1.0})]
