"""An engine apart whose processes are only played: what each of them is told, and what becomes of it when one ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.common.errors import RunError
from marft.common.processes.child_process import KILLED
from marft.common.processes.connection import BUFFER_BYTES, AsyncConnection
from marft.common.processes.messages import FrameEncoder, by_name
from marft.common.token_data import Grammar
from marft.common.types import ActionKey, Option, SamplingParams, VersionRange
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.messages import (
    TO_ENGINE,
    VALUES,
    CancelRequest,
    EngineInit,
    LoadCommand,
    SampleRequest,
    SleepCommand,
)
from tests.marft.inference.test_engine_apart import PROMPT, Weights
from tests.played_engines import ENDED, Life, Starter, answers, dies_asked, mute


@pytest.fixture
def played(tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Uses an engine whose processes are played."""
    monkeypatch.setattr("marft.inference.subprocess_engine.engine.POLL_SECONDS", 0.01)

    def run(
        use: Callable[[Any, Starter], Awaitable[Any]], *plays: Any, how: str = ENDED, busy: int = -1,
        patience: float = 5.0, sleeps: bool = False, names: tuple[str, ...] = ("actor",),
    ) -> Any:  # fmt: skip
        async def whole() -> Any:
            starter = Starter(*plays, how=how, busy=busy)
            policies = {name: SubprocessPolicy(tiny_tokenizer, (2,), Weights().save) for name in names}
            opened = EngineInit("model", "float32", 64, 4, 1, 8, 0, sleep_mode=sleeps)
            engine = SubprocessEngine(
                "played", lambda _: [], opened, policies, seed=1, timeout=patience, launcher=starter  # type: ignore[arg-type]
            )  # fmt: skip
            try:
                await engine.start()
                return await use(engine, starter)
            finally:
                await engine.close()

        return asyncio.run(asyncio.wait_for(whole(), 10))

    return run


async def said(engine: SubprocessEngine, call: int = 0, policy: str = "actor", **sampling: Any) -> Any:
    key = ActionKey("train/0", "t", 0, 0, "actor", call)
    return await engine.sample(policy, PROMPT, SamplingParams(**{"max_new_tokens": 4, **sampling}), key)


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.005)


def framed(message: SampleRequest) -> bytes:
    encoder = FrameEncoder(by_name(VALUES))
    encoder.add(message)
    return encoder.take_frame()


def test_what_is_asked_again_is_the_same_to_the_last_field(played: Callable[..., Any]) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        how = {"temperature": 0.7, "top_p": 0.8, "top_k": 3, "alternatives": 1, "grammar": Grammar("regex", "a+")}
        answer = await said(engine, **how)
        assert answer.tokens.tolist() == [5, 6, 7, 8]
        (first,), (again,) = (life.of(SampleRequest) for life in starter.lives)
        assert first.sampling == SamplingParams(max_new_tokens=4, **how)  # type: ignore[arg-type]
        assert framed(first) == framed(again)

    played(use, dies_asked, answers)


def test_one_that_is_started_again_gets_all_weights_as_they_were_published(played: Callable[..., Any]) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        await engine.publish({"actor": Weights(), "critic": Weights()}, 3)
        await engine.publish({"critic": Weights()}, 4)
        assert (await said(engine)).versions == VersionRange(3, 3)
        assert [(load.policy, load.version) for load in starter.lives[1].of(LoadCommand)] == [
            ("actor", 3),
            ("critic", 4),
        ]
        assert all(load.path.startswith("/1/") for load in starter.lives[1].of(LoadCommand))

    played(use, dies_asked, answers, names=("actor", "critic"))


def test_weights_that_are_published_while_the_next_one_begins_are_given_to_it(played: Callable[..., Any]) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        asking = asyncio.create_task(said(engine))
        await until(lambda: len(starter.lives) == 2)
        publishing = asyncio.create_task(engine.publish({"actor": Weights()}, 7))
        await until(lambda: engine.version("actor") == 7)
        starter.processes[1].free.set()
        await publishing
        assert (await asking).versions == VersionRange(7, 7)

    played(use, dies_asked, answers, busy=1)


def test_what_was_carried_to_one_that_has_ended_is_not_given_to_the_next(played: Callable[..., Any]) -> None:
    leave = asyncio.Event()

    async def leaves(life: Life) -> None:
        await life.begin()
        life.loaded(await life.next(LoadCommand))
        await leave.wait()

    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        starter.processes[0].free.clear()
        publishing = asyncio.create_task(engine.publish({"actor": Weights()}, 7))
        await until(lambda: engine.version("actor") == 7)
        leave.set()
        assert (await said(engine)).versions == VersionRange(7, 7)
        starter.processes[0].free.set()
        await publishing
        await asyncio.sleep(0.05)
        assert all(load.path.startswith("/1/") for load in starter.lives[1].of(LoadCommand))

    played(use, leaves, answers)


def test_one_that_nobody_asks_for_anything_may_be_silent(played: Callable[..., Any]) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        await asyncio.sleep(0.2)
        assert (await said(engine)).tokens.tolist() == [5, 6, 7, 8]
        assert (len(starter.lives), engine.usage()["engine_restarts"]) == (1, 0)

    played(use, answers, patience=0.05)


def test_one_that_is_asked_and_silent_is_given_up(played: Callable[..., Any]) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        assert (await said(engine)).tokens.tolist() == [5, 6, 7, 8]
        assert engine.usage()["engine_restarts"] == 1

    played(use, mute, answers, patience=0.1)


@pytest.mark.parametrize(("how", "lives"), [(ENDED, 3), (KILLED, 8)])
def test_so_many_ends_without_an_answer_in_between_end_the_run(
    how: str, lives: int, played: Callable[..., Any]
) -> None:
    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        with pytest.raises(RunError, match="its process"):
            await said(engine)
        assert len(starter.lives) == lives

    played(use, dies_asked, how=how)


def test_an_answer_gives_all_lives_back(played: Callable[..., Any]) -> None:
    async def answers_once(life: Life) -> None:
        await life.begin()
        ask = await life.next(SampleRequest)
        life.say(ask, 5, 6, 7, 8)
        await life.next(SampleRequest)

    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        for call in range(6):
            assert (await said(engine, call)).tokens.tolist() == [5, 6, 7, 8]
        assert len(starter.lives) == 6

    played(use, answers_once)


def test_weights_stay_until_the_last_request_that_began_with_them_is_over(played: Callable[..., Any]) -> None:
    release = asyncio.Event()

    async def waits(life: Life) -> None:
        await life.begin()
        first = await life.next(SampleRequest)
        life.loaded(await life.next(LoadCommand))
        await release.wait()
        life.say(first, 5, 6, 7, 8)
        await life.next(SampleRequest)

    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        old = Path(engine._weights["actor"].path)
        asking = asyncio.create_task(said(engine))
        await until(lambda: starter.lives[0].of(SampleRequest))
        await engine.publish({"actor": Weights()}, 1)
        assert old.is_dir()
        assert starter.processes[0].dropped_folders == []
        release.set()
        await asking
        assert not old.exists()
        assert starter.processes[0].dropped_folders == [old]
        assert Path(engine._weights["actor"].path).is_dir()

    played(use, waits)


def test_what_a_text_of_ours_has_ended_is_given_up_there(
    played: Callable[..., Any], tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    async def tells(life: Life) -> None:
        await life.begin()
        ask = await life.next(SampleRequest)
        assert ask.stream
        life.say(ask, 5, 6, 7, finish="")
        await life.next(CancelRequest)

    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        answer = await said(engine, stop=(str(tiny_tokenizer.decode([6])),))
        assert (answer.tokens.tolist(), answer.finish) == ([5, 6], "stop")
        await until(lambda: starter.lives[0].of(CancelRequest))
        assert starter.lives[0].of(CancelRequest)[0].number == starter.lives[0].of(SampleRequest)[0].number

    played(use, tells)


def test_a_listener_hears_each_token_once_though_it_is_sampled_again(played: Callable[..., Any]) -> None:
    heard: list[int] = []

    async def dies_halfway(life: Life) -> None:
        await life.begin()
        life.say(await life.next(SampleRequest), 5, 6, finish="")

    async def use(engine: SubprocessEngine, starter: Starter) -> None:
        await said(engine, on_token=heard.append)
        assert heard == [5, 6, 7, 8]

    played(use, dies_halfway, answers)


def test_a_choice_counts_temperature_and_length(played: Callable[..., Any]) -> None:
    options = [Option(np.array([1, 2, 3], np.int32), 3.0), Option(np.array([4], np.int32), 0.5)]

    async def use(engine: SubprocessEngine, starter: Starter) -> Any:
        return await engine.choose(
            "actor", PROMPT, options, SamplingParams(temperature=0.5), ActionKey("", "", 0, 0, "", 0)
        )

    choice, _ = played(use, dies_asked, answers)
    scores = np.array([-3 * 0.5 / 3.0, -1 * 0.5 / 0.5])
    assert choice.log_probs == pytest.approx(scores - np.log(np.exp(scores).sum()), abs=1e-6)


class TestResting:
    def test_it_does_not_rest_while_somebody_waits(self, played: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, starter: Starter) -> None:
            asking = asyncio.create_task(said(engine))
            await until(lambda: starter.lives[0].of(SampleRequest))
            await engine.wait_idle()
            await asyncio.sleep(0.02)
            assert not starter.lives[0].of(SleepCommand)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await engine.wait_idle()
            assert [rest.sleep for rest in starter.lives[0].of(SleepCommand)] == [True]

        played(use, mute, sleeps=True)

    def test_one_that_ends_asleep_is_followed_by_one_that_rests(self, played: Callable[..., Any]) -> None:
        async def dies_resting(life: Life) -> None:
            await life.begin()
            await life.next(SleepCommand)

        async def use(engine: SubprocessEngine, starter: Starter) -> None:
            await engine.wait_idle()
            assert [type(message) for message in starter.lives[1].told] == [LoadCommand, SleepCommand]
            await said(engine)
            assert [rest.sleep for rest in starter.lives[1].of(SleepCommand)] == [True, False]

        played(use, dies_resting, answers, sleeps=True)


def test_a_frame_that_comes_in_pieces_is_taken_whole_and_one_cut_short_is_none() -> None:
    async def sent(cut: int) -> Any:
        ours, theirs = socket.socketpair()
        frame = framed(SampleRequest(1, "actor", np.arange(BUFFER_BYTES, dtype=np.int32), SamplingParams(), 1, []))
        connection = await AsyncConnection.from_socket(ours, TO_ENGINE, VALUES)
        sending = asyncio.create_task(asyncio.to_thread(_send, theirs, frame[: len(frame) - cut]))
        try:
            return await asyncio.wait_for(connection.receive(), 5)
        finally:
            connection.close()
            await sending

    def _send(end: socket.socket, data: bytes) -> None:
        with end:
            end.sendall(data)

    assert asyncio.run(sent(0)).prompt.tolist() == list(range(BUFFER_BYTES))
    with pytest.raises(EOFError):
        asyncio.run(sent(1))
