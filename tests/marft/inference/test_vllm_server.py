"""What our program asks of vLLM, without vLLM: a stand-in says what it was asked, and answers when it is let."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marft.common.processes.messages import Completed
from marft.common.token_data import Grammar
from marft.common.types import SamplingParams
from marft.inference.subprocess_engine import server as server_module
from marft.inference.subprocess_engine import vllm_server
from marft.inference.subprocess_engine.messages import (
    CancelRequest,
    Heartbeat,
    LoadCommand,
    Rejected,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    TokenChunk,
)
from marft.inference.subprocess_engine.vllm_server import Server

HOW = SamplingParams(temperature=0.7, max_new_tokens=4, top_p=0.9, top_k=5)
ASK = SampleRequest(10, "actor", np.array([5, 6], np.int32), HOW, 123, [2, 3])


class Engine:
    """Samples token 7 for whoever asks, once it is let."""

    errored = False

    def __init__(self) -> None:
        self.let, self.room = asyncio.Event(), asyncio.Event()  # to answer, and to load adapters
        self.room.set()
        self.asked: list[SimpleNamespace] = []
        self.adapters: list[int] = []
        self.calls: list[tuple[str, str]] = []
        self.finish = "length"
        self.likely: dict[int, int] = {}  # ranks of other tokens

    async def is_sleeping(self) -> bool:
        if self.errored:
            raise RuntimeError("EngineCore died")
        return False

    async def add_lora(self, adapter: Any) -> None:
        await self.room.wait()
        self.adapters.append(adapter.lora_int_id)

    async def remove_lora(self, number: int) -> None:
        self.adapters.remove(number)

    async def collective_rpc(self, name: str, kwargs: dict[str, str]) -> None:
        self.calls.append((name, kwargs["weights_path"]))

    async def generate(self, prompt: dict[str, Any], sampling: Any, name: str, lora_request: Any) -> AsyncIterator[Any]:
        number = lora_request and lora_request.lora_int_id
        self.asked.append(SimpleNamespace(**prompt, sampling=sampling, name=name, adapter=number))
        await self.let.wait()
        step = {id: SimpleNamespace(logprob=-float(id), rank=id) for id in (7, *sampling.logprob_token_ids)}
        step |= {id: SimpleNamespace(logprob=-float(rank), rank=rank) for id, rank in self.likely.items()}
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7], logprobs=[step], finish_reason=self.finish)])


class Connection:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of vLLM's, as far as they are asked for."""

    def parameters(**given: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"logprob_token_ids": (), **given})

    def request(name: str, number: int, path: str) -> SimpleNamespace:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)

    modules: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": parameters},
        "vllm.sampling_params": {
            "RequestOutputKind": SimpleNamespace(DELTA="delta", FINAL_ONLY="final"),
            "StructuredOutputsParams": SimpleNamespace,
        },
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": request},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def served(use: Any) -> Any:
    async def whole() -> Any:
        server = Server(connection := Connection(), engine := Engine())  # type: ignore[arg-type]
        return await use(server, engine, connection.sent)

    return asyncio.run(whole())


def test_each_version_has_a_salt_and_a_slot_of_its_own_until_its_last_request_is_over() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/1"))
        server.handle(LoadCommand(2, "other", 3, "/weights/2"))
        await turns()
        server.handle(ASK)
        server.handle(replace(ASK, number=11, policy="other"))
        await turns()
        server.handle(LoadCommand(4, "actor", 4, "/weights/4"))
        server.handle(replace(ASK, number=12))
        await turns()
        assert engine.adapters == [1, 2, 4]  # the old one is still used
        assert [asked.adapter for asked in engine.asked] == [1, 2, 4]
        assert len({asked.cache_salt for asked in engine.asked}) == 3
        engine.let.set()
        await turns()
        assert engine.adapters == [2, 4]
        assert [one.number for one in sent if isinstance(one, Completed)] == [1, 2, 4]
        said = {one.number: (one.lowest, one.highest) for one in sent if isinstance(one, TokenChunk)}
        assert said == {10: (3, 3), 11: (3, 3), 12: (4, 4)}

    served(use)


def test_a_slot_is_given_back_with_a_request_that_is_forgotten() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/1"))
        server.handle(ASK)
        await turns()
        server.handle(LoadCommand(2, "actor", 4, "/weights/2"))
        await turns()
        assert engine.adapters == [1, 2]
        server.handle(CancelRequest(ASK.number))
        await turns()
        assert engine.adapters == [2]
        assert not any(isinstance(one, TokenChunk) for one in sent)

    served(use)


def test_what_is_asked_while_weights_are_loaded_waits_for_those_and_no_others() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        engine.room.clear()
        server.handle(LoadCommand(1, "actor", 3, "/weights/1"))
        server.handle(ASK)
        server.handle(LoadCommand(2, "actor", 4, "/weights/2"))
        await turns()
        assert (engine.asked, sent) == ([], [])
        engine.room.set()
        await turns()
        assert [asked.adapter for asked in engine.asked] == [1]
        assert [(one.lowest, one.highest) for one in sent if isinstance(one, TokenChunk)] == [(3, 3)]
        assert engine.adapters == [2]

    served(use)


def test_a_slot_that_nobody_uses_is_given_back_with_the_next_version() -> None:
    async def use(server: Server, engine: Engine, _: list[Any]) -> None:
        for number in (1, 2):
            server.handle(LoadCommand(number, "actor", number, f"/weights/{number}"))
            await turns()
        assert engine.adapters == [2]

    served(use)


def test_an_action_under_way_when_whole_weights_are_replaced_has_both_versions() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/1", full_model=True))
        server.handle(ASK)
        await turns()
        server.handle(LoadCommand(2, "actor", 4, "/weights/2", full_model=True))
        await turns()
        engine.let.set()
        await turns()
        assert (sent[-1].lowest, sent[-1].highest) == (3, 4)

    served(use)


def test_whole_weights_are_read_in_place_under_another_salt() -> None:
    async def use(server: Server, engine: Engine, _: list[Any]) -> None:
        engine.let.set()
        for number in (1, 2):
            server.handle(LoadCommand(number, "actor", number, f"/weights/{number}", full_model=True))
            await turns()
            server.handle(replace(ASK, number=10 + number))
            await turns()
        assert engine.calls == [("reload_weights", "/weights/1"), ("reload_weights", "/weights/2")]
        assert [asked.adapter for asked in engine.asked] == [None, None]
        assert len({asked.cache_salt for asked in engine.asked}) == 2

    served(use)


def test_an_action_is_sampled_as_its_request_says() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        server.handle(LoadCommand(1, "actor", 3))
        server.handle(ASK)
        await turns()
        (asked,) = engine.asked
        how = asked.sampling
        assert asked.prompt_token_ids == [5, 6]
        assert (how.temperature, how.top_p, how.top_k, how.seed, how.max_tokens) == (0.7, 0.9, 5, 123, 4)
        assert (how.stop_token_ids, how.ignore_eos, how.output_kind) == ([2, 3], True, "final")
        said = sent[-1]
        assert (said.tokens.tolist(), said.log_probs.tolist(), said.finish) == ([7], [-7.0], "length")

    served(use)


def test_options_are_weighed_by_their_tokens_after_each_beginning() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        server.handle(LoadCommand(1, "actor", 3))
        options, sizes = np.array([4, 5, 4, 6, 8], np.int32), np.array([2, 2, 1], np.int32)
        server.handle(ScoreRequest(20, "actor", np.array([1], np.int32), options, sizes, 0.5))
        await turns()
        assert sorted((one.prompt_token_ids, one.sampling.logprob_token_ids) for one in engine.asked) == [
            ([1], [4, 8]),
            ([1, 4], [5, 6]),
        ]
        assert {one.sampling.temperature for one in engine.asked} == {0.5}
        weighed = sent[-1]
        assert isinstance(weighed, ScoreResponse)
        assert weighed.log_probs.tolist() == [-9.0, -10.0, -8.0]

    served(use)


def test_the_likeliest_tokens_come_by_their_rank() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        engine.likely = {30: 3, 10: 1, 20: 2}
        server.handle(LoadCommand(1, "actor", 3))
        server.handle(replace(ASK, sampling=replace(HOW, alternatives=2)))
        await turns()
        assert (sent[-1].top_ids.tolist(), sent[-1].top_log_probs.tolist()) == ([[10, 20]], [[-1.0, -2.0]])

    served(use)


def test_an_action_that_vllm_gave_up_is_no_action() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        engine.finish = "abort"
        server.handle(LoadCommand(1, "actor", 3))
        server.handle(ASK)
        await turns()
        assert isinstance(sent[-1], Rejected)
        assert (sent[-1].number, sent[-1].reason) == (10, "ValueError: it was ended: abort")

    served(use)


def test_each_kind_of_grammar_is_asked_for_as_vllm_calls_it() -> None:
    async def use(server: Server, engine: Engine, _: list[Any]) -> None:
        server.handle(LoadCommand(1, "actor", 3))
        for number, grammar in enumerate((Grammar("lark", "start: x"), Grammar("regex", "a+"), Grammar("json", "{}"))):
            server.handle(replace(ASK, number=20 + number, sampling=replace(HOW, grammar=grammar)))
        await turns()
        lark, regex, schema = (vars(one.sampling.structured_outputs) for one in engine.asked)
        assert (lark, regex, list(schema)) == ({"grammar": "start: x"}, {"regex": "a+"}, ["json"])

    served(use)


def test_a_grammar_that_vllm_does_not_take_fails_its_episode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Grammar) -> None:
        raise ValueError("Failed to convert the grammar")

    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.let.set()
        server.handle(LoadCommand(1, "actor", 3))
        server.handle(replace(ASK, sampling=replace(HOW, grammar=Grammar("lark", "start: x"))))
        await turns()
        assert isinstance(sent[-1], RequestFailed)
        assert sent[-1].number == 10

    monkeypatch.setattr(vllm_server, "_structured_outputs", refused)
    served(use)


class Ended(BaseException):
    """In the place of the process's end."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.001)


@pytest.mark.usefixtures("ends")
def test_our_process_ends_with_an_engine_that_is_dead() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        engine.errored = True
        await server.send_heartbeats()

    with pytest.raises(Ended):
        served(lambda *parts: asyncio.wait_for(use(*parts), 5))


@pytest.mark.usefixtures("ends")
def test_it_says_that_it_lives_for_as_long_as_the_engine_answers() -> None:
    async def use(server: Server, engine: Engine, sent: list[Any]) -> None:
        asked = asyncio.Event()

        async def hangs() -> bool:
            asked.set()
            await asyncio.Event().wait()
            return False

        beating = asyncio.create_task(server.send_heartbeats())
        while not sent:
            await asyncio.sleep(0.001)
        assert isinstance(sent[0], Heartbeat)
        engine.is_sleeping = hangs  # type: ignore[method-assign]
        await asked.wait()
        said = len(sent)
        await asyncio.sleep(0.02)
        assert len(sent) == said
        beating.cancel()

    served(lambda *parts: asyncio.wait_for(use(*parts), 5))
