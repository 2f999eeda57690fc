"""A worker's side of its connection: who samples there, and when it says that it is still."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from marft.agents.game import Attempt, Game
from marft.agents.team import Team
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.processes.connection import AsyncConnection
from marft.common.types import Choice, Episode, Option, SamplingParams, VersionRange
from marft.rollout.workers.client import SamplerClient
from marft.rollout.workers.messages import (
    AttemptFailed,
    CancelRequest,
    ChooseRequest,
    EpisodeEnded,
    LeaseGranted,
    LeaseRequest,
    Ping,
    PlayAttempt,
    Pong,
    Quiescence,
    ReleaseLease,
    RequestFailure,
    RequestResult,
    SampledToken,
    SampleRequest,
)
from marft.rollout.workers.worker import Worker
from tests.marft.rollout.test_worker_links import ATTEMPT, KEY, PROMPT, SAID


class TestTheClient:
    """A worker's side: who samples, as the episodes there see it."""

    def asked(
        self, test: Callable[[SamplerClient, list[Any]], Awaitable[None]], in_messages: Sequence[str] = ()
    ) -> None:
        async def whole() -> None:
            sent: list[Any] = []
            await test(SamplerClient(sent.append, in_messages), sent)

        asyncio.run(whole())

    def test_a_request_for_ids_is_sent_without_the_messages_that_they_came_from(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            for policy in ("here", "there"):
                asking = asyncio.create_task(client.sample(policy, PROMPT, SamplingParams(), KEY))
                await asyncio.sleep(0)
                client.deliver(RequestResult(sent[-1].number, SAID))
                assert await asking is SAID
            assert [len(request.prompt.chat) for request in sent] == [0, 1]
            assert [request.prompt.truncated_tokens for request in sent] == [3, 3]

        self.asked(test, ["there"])

    def test_a_choice_comes_back_with_the_options_that_were_asked_for(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            options = [Option(np.array([n], np.int32), 1.0) for n in range(2)]
            asking = asyncio.create_task(client.choose("p", PROMPT, options, SamplingParams(), KEY))
            await asyncio.sleep(0)
            (request,) = sent
            assert isinstance(request, ChooseRequest)
            versions = VersionRange(2, 3)
            client.deliver(RequestResult(request.number, (Choice((), 1, np.zeros(2, np.float32)), versions)))
            choice, found = await asking
            assert (choice.options, choice.chosen, found) == (tuple(options), 1, versions)

        self.asked(test)

    def test_a_listener_stays_and_hears_the_tokens_of_its_own_request(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            heard: list[int] = []
            asking = asyncio.create_task(client.sample("p", PROMPT, SamplingParams(on_token=heard.append), KEY))
            other = asyncio.create_task(client.sample("p", PROMPT, SamplingParams(), KEY))
            await asyncio.sleep(0)
            assert [(request.live, request.sampling.on_token) for request in sent] == [(True, None), (False, None)]
            for number, token in ((sent[0].number, 5), (sent[1].number, 6), (sent[0].number, 7)):
                client.deliver(SampledToken(number, token))
            for request, task in zip(sent, (asking, other), strict=True):
                client.deliver(RequestResult(request.number, SAID))
                await task
            client.deliver(SampledToken(sent[0].number, 8))
            assert heard == [5, 7]

        self.asked(test)

    def test_a_failure_is_raised_as_what_it_was(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            asking = asyncio.create_task(client.sample("p", PROMPT, SamplingParams(), KEY))
            await asyncio.sleep(0)
            client.deliver(RequestResult(sent[0].number, RequestFailure("timed_out", "too slow")))
            with pytest.raises(EpisodeFailedError, match="too slow") as failure:
                await asking
            assert failure.value.status == "timed_out"

        self.asked(test)

    def test_who_asks_stirs_and_who_gives_up_says_so(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            stirred = client.barrier._activity_count
            asking = asyncio.create_task(client.sample("p", PROMPT, SamplingParams(), KEY))
            await asyncio.sleep(0)
            assert client.barrier._activity_count > stirred
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert [type(message) for message in sent] == [SampleRequest, CancelRequest]
            assert sent[0].number == sent[1].number
            client.deliver(RequestResult(sent[0].number, SAID))  # which was under way: nobody minds

        self.asked(test)

    def test_a_slot_is_waited_for_and_given_back_also_where_it_never_came(self) -> None:
        async def test(client: SamplerClient, sent: list[Any]) -> None:
            async def use() -> None:
                async with client.slot("sums", 1):
                    used.append(1)

            used: list[int] = []
            using, waiting = asyncio.create_task(use()), asyncio.create_task(use())
            await asyncio.sleep(0)
            assert ([type(message) for message in sent], used) == ([LeaseRequest, LeaseRequest], [])
            client.deliver(LeaseGranted(sent[0].number))
            await using
            assert used == [1]
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert [message.number for message in sent[2:]] == [sent[0].number, sent[1].number]
            assert {type(message) for message in sent[2:]} == {ReleaseLease}

        self.asked(test)


class TestTheWorkerItself:
    """It is still when every episode waits for an answer, and says so with how much it has heard by then."""

    def heard(self, *messages: tuple[int, object], passes: Sequence[int] = (0, 0)) -> list[Any]:
        """What a worker says to messages that come after so many passes of its event loop each.

        Args:
            passes: that an episode, by number, takes to ask for something.
        """

        async def whole() -> list[Any]:
            sent: list[Any] = []
            worker = Worker.__new__(Worker)
            worker.client = SamplerClient(sent.append, ())
            worker.stream = cast("AsyncConnection", SimpleNamespace(send=sent.append))
            worker.team = cast("Team", None)
            worker._attempts, worker._received, worker._has_work = set(), 0, asyncio.Event()

            async def play(message: PlayAttempt, _: Team) -> None:
                for _pass in range(passes[message.number]):
                    await asyncio.sleep(0)
                await worker.client.sample("p", PROMPT, SamplingParams(), KEY)

            worker._play = play  # type: ignore[method-assign]
            telling = asyncio.create_task(worker._report_quiescence())
            for after, message in messages:
                for _pass in range(after):
                    await asyncio.sleep(0)
                worker._handle_message(message)
            for _pass in range(200):
                await asyncio.sleep(0)
            telling.cancel()
            return list(sent)  # without what is called off in the end

        return asyncio.run(whole())

    def test_what_comes_in_the_meantime_is_waited_for_too(self) -> None:
        first, second, *still = self.heard((0, PlayAttempt(0, b"")), (10, PlayAttempt(1, b"")), passes=(0, 12))
        assert [type(message) for message in (first, second)] == [SampleRequest, SampleRequest]
        assert {message.received for message in still} == {2}

    def test_an_answer_counts_as_what_sets_it_going_and_a_ping_does_not(self) -> None:
        said = self.heard((0, PlayAttempt(0, b"")), (100, RequestResult(0, SAID)), (100, Ping()))
        assert [type(message) for message in said] == [SampleRequest, Quiescence, Quiescence, Pong]
        assert said[1:3] == [Quiescence(1), Quiescence(2)]


class TestAnEpisodeThere:
    """What a worker says of an attempt that it plays."""

    def said(self, monkeypatch: pytest.MonkeyPatch, play: Callable[[Game, Attempt], Awaitable[Episode]]) -> list[Any]:
        async def whole() -> list[Any]:
            sent: list[Any] = []
            worker = Worker.__new__(Worker)
            worker.stream = cast("AsyncConnection", SimpleNamespace(send=sent.append))

            async def compose(episode: Episode) -> Episode:
                sent.append("its rewards are worked out")
                return replace(episode, success=True)

            own = Game(*cast("Any", [None] * 5))
            worker.parts = cast(
                "Any", SimpleNamespace(game=own, reward_manager=compose, usage=lambda: {"x": float(len(sent))})
            )
            await worker._play(PlayAttempt(3, pickle.dumps(ATTEMPT)), cast("Team", "theirs"))
            return sent

        monkeypatch.setattr("marft.rollout.workers.worker.play", play)
        return asyncio.run(whole())

    def test_it_counts_as_live_until_it_is_over_and_comes_back_with_its_rewards_and_what_was_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play(game: Game, attempt: Attempt) -> Episode:
            assert game.team == "theirs"
            return Episode(attempt.task, attempt.stream, attempt.sample, (), "terminated")

        over, composing, played = self.said(monkeypatch, play)
        assert (over, composing) == (EpisodeEnded(3), "its rewards are worked out")
        assert (played.number, played.usage) == (3, {"x": 2.0})
        assert (played.episode.status, played.episode.success, played.episode.sample) == ("terminated", True, 1)

    def test_what_is_not_its_own_fault_is_told_with_what_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def play(_: Game, __: Attempt) -> Episode:
            raise RunError("nobody samples any more")

        (broken,) = self.said(monkeypatch, play)
        assert isinstance(broken, AttemptFailed)
        assert (broken.number, broken.fault.message, broken.fault.kind) == (3, "nobody samples any more", "run")
