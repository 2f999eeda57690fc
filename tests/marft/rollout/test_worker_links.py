"""What a run and a worker owe each other, message by message: one end is real, the other is the test."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from marft.agents.game import Attempt, Replay
from marft.common.errors import EpisodeFailedError
from marft.common.processes.child_process import ChildProcess
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import LENGTHS
from marft.common.processes.remote_error import RemoteError
from marft.common.types import ActionKey, Completion, Episode, Fork, Prompt, SamplingParams, Task
from marft.config.interfaces.engine import Sampler
from marft.rollout.workers.messages import (
    TO_WORKER,
    VALUES,
    AttemptFailed,
    AttemptsCanceled,
    CancelAttempts,
    CancelRequest,
    ChangeTeam,
    EpisodeEnded,
    EpisodeRewarded,
    LeaseGranted,
    LeaseRequest,
    Ping,
    PlayAttempt,
    Pong,
    Quiescence,
    ReleaseLease,
    RequestFailure,
    RequestResult,
    SampleRequest,
    StartWorker,
    TurnRequest,
    WorkerReady,
)
from marft.rollout.workers.worker_connection import WorkerConnection, WorkerLostError
from marft.rollout.workers.worker_pool import RetriedRollout

KEY, BEGIN = ActionKey("s", "t", 0, 0, "a", 0), StartWorker(b"", b"", 0)
PROMPT = Prompt(np.array([1, 2], np.int32), 3, ({"role": "user", "content": "hi"},))
SAID = Completion(np.array([5], np.int32), np.array([-0.5], np.float32), "five", "stop")
ATTEMPT = Attempt(Task("t/0", "begin"), "train/0", 1)


class Engine:
    """Says what it is told to, and counts who holds its external wait."""

    def __init__(self, outcome: object = SAID) -> None:
        self.held, self.outcome, self.forgotten = 0, outcome, 0

    async def sample(self, *_: object) -> Completion:
        if self.outcome is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.forgotten += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return cast("Completion", self.outcome)

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1


class Stub:
    """A child that is not there: only its end of the connection is."""

    name = "worker 0"

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.ended = connection, 0

    def end(self) -> None:
        self.ended += 1

    def wait_or_terminate(self) -> str:
        return "ended itself (exit status 3)"


class Peer:
    """The other end of a link: says what a test has it say, and keeps what it heard."""

    def __init__(self, wire: AsyncConnection, link: WorkerConnection, engine: Engine, child: Stub) -> None:
        self.wire, self.link, self.engine, self.child = wire, link, engine, child
        self.heard: list[Any] = []

    async def says(self, *messages: object) -> None:
        for message in messages:
            self.wire.send(message)
        await self.passes()

    async def passes(self) -> None:
        """Until all that was sent in either direction has been heeded."""
        for _ in range(20):
            await asyncio.sleep(0.0005)

    async def listen(self) -> None:
        try:
            while True:
                self.heard += await self.wire.receive_together()
        except EOFError:
            return

    async def goes(self) -> None:
        self.wire.close()
        await self.link.exited

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


@asynccontextmanager
async def linked(engine: Engine, leases: Any = None, patience: float = 3.0) -> AsyncIterator[Peer]:
    mine, theirs = socket.socketpair()
    child = Stub(mine)
    link = WorkerConnection(cast("ChildProcess", child), cast("Sampler", engine), leases, patience)
    starting = asyncio.create_task(link.start(BEGIN))
    worker = Peer(await AsyncConnection.from_socket(theirs, TO_WORKER, VALUES), link, engine, child)
    listening = asyncio.create_task(worker.listen())
    await worker.says(WorkerReady(7, (), {"x": 1.0}))
    await starting
    yield worker
    if not link.exited.done():
        await worker.goes()
    listening.cancel()


def held_to(test: Callable[[Peer], Awaitable[None]], engine: Engine, **options: Any) -> None:
    async def whole() -> None:
        async with linked(engine, **options) as worker:
            await test(worker)

    asyncio.run(whole())


def episode(number: int = 0) -> Episode:
    return Episode(Task("", ""), "train/0", number, (), "terminated")


class TestTheEngineWaits:
    """In-order admission rests on this: no request may come unexpected."""

    def test_from_whatever_sets_a_worker_going_until_it_has_heard_all_of_it_and_is_still(self) -> None:
        async def test(worker: Peer) -> None:
            assert worker.engine.held == 0
            worker.link.play(ATTEMPT, b"team")
            worker.link.play(ATTEMPT, b"team")
            assert worker.engine.held == 1
            await worker.says(Quiescence(1))  # before it had heard of the second one
            assert worker.engine.held == 1
            await worker.says(SampleRequest(0, "p", PROMPT, SamplingParams(), KEY))
            assert [answer.number for answer in worker.of(RequestResult)] == [0]
            await worker.says(Quiescence(2))  # before it had heard the answer
            assert worker.engine.held == 1
            await worker.says(Quiescence(3))
            assert worker.engine.held == 0
            worker.link.play(ATTEMPT, b"team")
            assert worker.engine.held == 1

        held_to(test, Engine())

    def test_not_for_a_worker_that_is_gone(self) -> None:
        async def test(worker: Peer) -> None:
            worker.link.play(ATTEMPT, b"team")
            await worker.goes()
            assert worker.engine.held == 0

        held_to(test, Engine())

    def test_a_worker_is_sent_a_team_once_and_again_when_it_is_another(self) -> None:
        async def test(worker: Peer) -> None:
            for team in (b"one", b"one", b"two", b"one"):
                worker.link.play(ATTEMPT, team)
            await worker.passes()
            kinds = [type(message) for message in worker.heard if not isinstance(message, StartWorker)]
            assert kinds == [ChangeTeam, PlayAttempt, PlayAttempt, ChangeTeam, PlayAttempt, ChangeTeam, PlayAttempt]
            assert [message.team for message in worker.of(ChangeTeam)] == [b"one", b"two", b"one"]
            assert [message.number for message in worker.of(PlayAttempt)] == [0, 1, 2, 3]

        held_to(test, Engine())


class TestEpisodes:
    def test_one_comes_back_with_its_task_and_what_was_used(self) -> None:
        async def test(worker: Peer) -> None:
            playing = worker.link.play(ATTEMPT, b"team")
            await worker.says(EpisodeEnded(0))
            assert playing.ended.done()
            assert not playing.episode.done()
            assert worker.link.live_count == 1
            await worker.says(EpisodeRewarded(0, episode(), {"x": 2.0}))
            assert (await playing.episode).task == ATTEMPT.task
            assert (worker.link.live_count, worker.link.usage) == (0, {"x": 2.0})

        held_to(test, Engine())

    def test_what_a_lost_worker_played_is_lost_with_how_it_ended_and_how_many_it_played(self) -> None:
        async def test(worker: Peer) -> None:
            playing = [worker.link.play(replace(ATTEMPT, sample=sample), b"team") for sample in range(2)]
            await worker.says(EpisodeEnded(1))  # and its rewards are still being worked out
            await worker.goes()
            assert worker.link.live_count == 0
            for one in playing:
                with pytest.raises(WorkerLostError, match=r"^the worker process that played it ended itself") as lost:
                    await one.episode
                assert (lost.value.status, lost.value.attempt_count) == ("failed", 2)
            assert isinstance(playing[0].ended.exception(), WorkerLostError)
            assert playing[1].ended.exception() is None

        held_to(test, Engine())

    def test_an_attempt_that_is_given_up_says_of_which_episode_a_fork_was(self) -> None:
        fork = Attempt(ATTEMPT.task, "train/0/fork", 1, replay=Replay("origin", "train/0", 1, {}, fork_id="0/a/0"))
        for attempt, of in ((ATTEMPT, None), (fork, Fork("origin", "0/a/0"))):
            tried = RetriedRollout(attempt, b"team")
            tried.fail("failed", "it ended workers")
            assert tried.failed_episode is not None
            assert (tried.failed_episode.status, tried.failed_episode.error, tried.failed_episode.fork) == (
                "failed",
                "it ended workers",
                of,
            )
            assert (tried.failed_episode.sample, tried.failed_episode.stream) == (1, attempt.stream)
            assert 0.0 <= tried.failed_episode.seconds < 60.0

    def test_one_that_is_silent_for_too_long_is_ended_and_one_that_answers_is_not(self) -> None:
        async def test(worker: Peer) -> None:
            playing = worker.link.play(ATTEMPT, b"team")
            for _ in range(3):
                worker.link.send_heartbeat()
            await worker.says(Pong())
            for _ in range(3):
                worker.link.send_heartbeat()
            assert not worker.child.ended
            worker.link.send_heartbeat()
            assert worker.child.ended == 1
            await worker.passes()
            assert len(worker.of(Ping)) == 7
            await worker.goes()
            with pytest.raises(WorkerLostError, match="did not answer for over 3 s") as lost:
                await playing.episode
            assert (lost.value.status, lost.value.attempt_count) == ("timed_out", 1)

        held_to(test, Engine())

    def test_what_it_played_is_lost_even_if_its_end_cannot_be_waited_for_and_the_engine_fails(self) -> None:
        """The run once waited for it without end."""

        async def test(worker: Peer) -> None:
            def fail() -> str:
                raise OSError("no such process")

            @contextmanager
            def broken_wait() -> Iterator[None]:
                yield
                raise KeyError("engine")

            worker.child.wait_or_terminate = fail  # type: ignore[method-assign]
            worker.engine.external_wait = broken_wait  # type: ignore[method-assign]
            playing = worker.link.play(ATTEMPT, b"team")
            await worker.goes()
            for future in (playing.ended, playing.episode):
                with pytest.raises(WorkerLostError, match="that played it ended for an unknown reason"):
                    await future
            assert worker.link._listen_task is not None
            assert isinstance(worker.link._listen_task.exception(), KeyError)

        held_to(test, Engine())

    def test_one_that_talks_nonsense_is_ended_and_that_is_said_of_what_it_played(self) -> None:
        async def test(worker: Peer) -> None:
            playing = worker.link.play(ATTEMPT, b"team")
            worker.wire._writer.write(LENGTHS.pack(5, 5) + b"abcde")
            await asyncio.wait_for(worker.link.exited, 5.0)
            assert worker.child.ended == 1
            with pytest.raises(WorkerLostError, match="sent what cannot be read, and was ended") as lost:
                await playing.episode
            assert lost.value.status == "failed"

        held_to(test, Engine())

    def test_what_is_called_off_is_waited_for_until_it_is(self) -> None:
        async def test(worker: Peer) -> None:
            worker.link.play(ATTEMPT, b"team")
            cancelling = asyncio.create_task(worker.link.cancel())
            await worker.passes()
            assert len(worker.of(CancelAttempts)) == 1
            assert not cancelling.done()
            await worker.says(AttemptsCanceled({"x": 3.0}))
            await cancelling
            assert (worker.link.live_count, worker.link.usage) == (0, {"x": 3.0})
            cancelling = asyncio.create_task(worker.link.cancel())
            await worker.passes()
            assert not cancelling.done()
            await worker.goes()  # and nobody waits for one that is gone
            await cancelling

        held_to(test, Engine())

    def test_it_is_called_off_once_however_many_do_and_what_comes_then_waits(self) -> None:
        """A second time would reach episodes while they close their sessions; what is sent before the answer comes
        would be taken for what is called off."""

        async def test(worker: Peer) -> None:
            worker.link.play(ATTEMPT, b"team", 5)
            cancelling = [asyncio.create_task(worker.link.cancel()) for _ in range(3)]
            await worker.passes()
            assert len(worker.of(CancelAttempts)) == 1
            assert worker.link.max_concurrent == 0
            await worker.says(AttemptsCanceled({}))
            await asyncio.gather(*cancelling)
            assert (worker.link.live_count, worker.link.max_concurrent) == (0, math.inf)

        held_to(test, Engine())

    def test_as_many_are_beside_each_other_as_all_of_them_may_be(self) -> None:
        async def test(worker: Peer) -> None:
            assert worker.link.max_concurrent == math.inf
            for most in (4, 3, math.inf):
                worker.link.play(ATTEMPT, b"team", most)
            assert worker.link.max_concurrent == 3
            await worker.says(EpisodeRewarded(1, episode(), {}))
            assert worker.link.max_concurrent == 4
            await worker.says(AttemptFailed(0, RemoteError("boom", "run", "")))
            assert (worker.link.live_count, worker.link.max_concurrent) == (1, math.inf)

        held_to(test, Engine())


class TestRequests:
    @pytest.mark.parametrize("status", ["failed", "timed_out"])
    def test_what_fails_an_episode_is_told_and_what_the_engine_raises_ends_them_all(self, status: Any) -> None:
        async def test(worker: Peer) -> None:
            playing = [worker.link.play(ATTEMPT, b"team") for _ in range(2)]
            await worker.says(SampleRequest(4, "p", PROMPT, SamplingParams(), KEY))
            (answer,) = worker.of(RequestResult)
            assert (answer.number, answer.outcome) == (4, RequestFailure(status, "no"))
            worker.engine.outcome = RuntimeError("device lost")
            await worker.says(SampleRequest(5, "p", PROMPT, SamplingParams(), KEY))
            assert len(worker.of(RequestResult)) == 1
            for one in playing:
                with pytest.raises(RuntimeError, match="device lost"):
                    await asyncio.wait_for(one.episode, 1.0)
            assert not worker.link._requests  # of what was answered nothing is kept

        held_to(test, Engine(EpisodeFailedError(status, "no")))

    def test_what_nobody_waits_for_any_more_is_forgotten(self) -> None:
        async def test(worker: Peer) -> None:
            await worker.says(*(SampleRequest(number, "p", PROMPT, SamplingParams(), KEY) for number in range(3)))
            await worker.says(CancelRequest(1))
            assert worker.engine.forgotten == 1
            await worker.goes()
            await worker.passes()
            assert worker.engine.forgotten == 3

        held_to(test, Engine(None))

    def test_a_lease_lasts_until_it_is_given_back_or_the_worker_is_gone(self) -> None:
        taken: list[str] = []

        class Counted:
            @asynccontextmanager
            async def slot(self, name: str, count: int) -> AsyncIterator[None]:
                taken.append(f"{name} of {count}")
                try:
                    yield
                finally:
                    taken.pop()

        async def test(worker: Peer) -> None:
            await worker.says(LeaseRequest(0, "sums", 2), LeaseRequest(1, "sums", 2))
            assert taken == ["sums of 2"] * 2
            assert [granted.number for granted in worker.of(LeaseGranted)] == [0, 1]
            await worker.says(ReleaseLease(0))
            assert len(taken) == 1
            await worker.goes()
            await worker.passes()
            assert taken == []

        held_to(test, Engine(), leases=Counted())

    def test_a_turn_is_granted_when_it_comes(self) -> None:
        asked, coming = list[tuple[str, float]](), asyncio.Semaphore(1)

        class Turns:
            async def turn(self, name: str, per_minute: float) -> None:
                asked.append((name, per_minute))
                await coming.acquire()

        async def test(worker: Peer) -> None:
            await worker.says(*(TurnRequest(number, "judge", 20.0) for number in range(3)))
            assert asked == [("judge", 20.0)] * 3
            assert [granted.number for granted in worker.of(LeaseGranted)] == [0]
            await worker.says(ReleaseLease(1))  # which nobody waits for any more
            coming.release()
            await worker.passes()
            assert [granted.number for granted in worker.of(LeaseGranted)] == [0, 2]

        held_to(test, Engine(), leases=Turns())
