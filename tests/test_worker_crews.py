"""Who fills the places of lost workers, who plays what, and what is let go of when nobody needs it any more."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.errors import RunError
from marft.game.channels.last import Last
from marft.game.engine import Sampler
from marft.game.game import Attempt
from marft.game.organizations.chain import Chain
from marft.game.team import Team
from marft.processes.child import Child
from marft.types import Task
from marft.workers import crew as crews
from marft.workers import worker as workers
from marft.workers.client import Client
from marft.workers.crew import TRIES, Crew
from marft.workers.messages import Begin, Cancelled, Change
from marft.workers.rollouts import WorkerRollouts
from marft.workers.worker import Worker

ATTEMPT = Attempt(Task("t/0", "begin"), "train/0")


class FakeLink:
    """A worker that a test starts, busies and loses."""

    made: list[FakeLink]
    failures = 0  # how many of those that come next end before they have begun

    def __init__(self, child: Any, *_: object) -> None:
        self.child, self.ready, self.live, self.usage = child, False, 0, dict[str, float]()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.played = SimpleNamespace(over=asyncio.get_running_loop().create_future())
        FakeLink.made.append(self)

    async def start(self, _: Begin) -> None:
        await asyncio.sleep(0.001)
        if FakeLink.failures:
            FakeLink.failures -= 1
            self.over.set_result("ended itself")
            raise RunError("it ended itself before it had begun")
        self.ready = True

    def play(self, *_: object) -> Any:
        self.live += 1
        return self.played

    def tick(self) -> None: ...

    async def end(self) -> None: ...

    def lose(self) -> None:
        self.ready = False
        self.over.set_result("was killed")


def crewed(test: Callable[[Crew], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    FakeLink.made, FakeLink.failures = [], 0
    monkeypatch.setattr(crews, "Link", FakeLink)
    monkeypatch.setattr(crews, "Child", lambda name, _: SimpleNamespace(name=name))

    async def whole() -> None:
        crew = Crew(Begin(b"", b"", 0), cast("Sampler", None), 1.0)
        await crew.start([cast("Child", SimpleNamespace(name=f"worker {n}")) for n in range(count)])
        try:
            await test(crew)
        finally:
            await crew.end()

    asyncio.run(asyncio.wait_for(whole(), 10.0))


class TestCrew:
    def test_what_a_lost_worker_used_is_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: Crew) -> None:
            FakeLink.made[0].usage = {"x": 2.0}
            assert crew.usage() == {"x": 2.0, "workers_lost": 0.0}
            FakeLink.made[0].lose()
            await asyncio.sleep(0.02)
            FakeLink.made[1].usage = {"x": 1.0}
            assert crew.usage() == {"x": 3.0, "workers_lost": 1.0}

        crewed(test, monkeypatch)

    def test_nor_is_it_counted_again_where_no_process_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_process(name: str, _: object) -> None:
            raise OSError(f"{name}: too many processes")

        async def test(crew: Crew) -> None:
            monkeypatch.setattr(crews, "Child", no_process)
            FakeLink.made[0].usage = {"x": 2.0}
            FakeLink.made[0].lose()
            with pytest.raises(OSError, match="too many processes"):
                await crew.play(ATTEMPT, b"")
            assert crew.usage() == {"x": 2.0, "workers_lost": 1.0}

        crewed(test, monkeypatch)

    def test_who_plays_least_plays_next_and_it_counts_until_it_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: Crew) -> None:
            one, other = FakeLink.made
            one.live = 1
            playing = asyncio.create_task(crew.play(ATTEMPT, b""))
            await asyncio.sleep(0.001)
            assert (one.live, other.live, playing.done()) == (1, 1, False)
            other.played.over.set_result(None)
            assert await playing is other.played  # type: ignore[comparison-overlap]

        crewed(test, monkeypatch, count=2)

    def test_an_attempt_waits_for_a_place_to_be_filled_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: Crew) -> None:
            FakeLink.failures = TRIES - 1
            FakeLink.made[0].lose()
            playing = asyncio.create_task(crew.play(ATTEMPT, b""))
            await asyncio.sleep(0.05)
            assert [link.live for link in FakeLink.made] == [*[0] * TRIES, 1]
            assert crew.lost == 1
            FakeLink.made[-1].played.over.set_result(None)
            await playing

        crewed(test, monkeypatch)

    def test_a_place_that_cannot_be_filled_again_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(crew: Crew) -> None:
            FakeLink.failures = 99
            FakeLink.made[0].lose()
            with pytest.raises(RunError, match="worker 0 was lost and cannot be started again: it ended itself"):
                await crew.play(ATTEMPT, b"")
            assert len(FakeLink.made) == 1 + TRIES

        crewed(test, monkeypatch)


class TestTeams:
    """The recipe's own organization and channel are in every worker; others travel."""

    def test_only_what_is_not_the_recipes_is_sent(self) -> None:
        rollouts = WorkerRollouts.__new__(WorkerRollouts)
        rollouts.team = own = Team((), Chain(), Last())
        for team, sent in (
            (own, ((), None, None)),
            (replace(own, organization=Chain()), ((), Chain(), None)),
            (replace(own, channel=Last()), ((), None, Last())),
        ):
            assert pickle.loads(rollouts._sent(team)) == sent

    def test_what_is_sent_takes_the_place_of_the_recipes_own_until_the_next_team(self) -> None:
        worker = Worker.__new__(Worker)
        own = Team((), Chain(), Last())
        worker.parts = cast("Any", SimpleNamespace(game=SimpleNamespace(team=own)))
        worker.team = own
        for organization, channel in ((Chain(), None), (None, Last()), (None, None)):
            worker._heed(Change(pickle.dumps(((), organization, channel))))
            team = worker.team
            assert (team.organization is own.organization) == (organization is None)
            assert (team.channel is own.channel) == (channel is None)


class TestCallingOff:
    def test_what_goes_wrong_in_one_episode_calls_off_all_others_before_it_is_raised(self) -> None:
        done: list[str] = []

        async def play(*_: object) -> None:
            raise ValueError("task 'odd' cannot be sent")

        async def noted(what: str) -> None:
            done.append(what)

        rollouts = WorkerRollouts.__new__(WorkerRollouts)
        rollouts._gate = asyncio.Semaphore(2)
        rollouts._crew = cast("Any", SimpleNamespace(play=play, cancel=lambda: noted("called off"),
                                                     usage=lambda: {"x": 1.0, "workers_lost": 0.0}))  # fmt: skip
        rollouts._engine = cast("Any", SimpleNamespace(settle=lambda: noted("settled"), usage=lambda: {"x": 2.0}))
        with pytest.raises(ValueError, match="cannot be sent"):
            asyncio.run(rollouts._play([ATTEMPT, ATTEMPT], b"", lambda _: None))
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

            monkeypatch.setattr(workers, "end_all", ended.set)
            worker = Worker.__new__(Worker)
            worker.client, worker.team = Client(sent.append, ()), cast("Team", None)
            worker.wire = cast("Any", SimpleNamespace(send=sent.append))
            worker.parts = cast("Any", SimpleNamespace(usage=lambda: {"x": 1.0}))
            worker._playing = {asyncio.create_task(play())}
            await asyncio.sleep(0)
            await asyncio.wait_for(worker._cancel(), 5.0)
            return sent

        assert asyncio.run(whole()) == [Cancelled({"x": 1.0})]
