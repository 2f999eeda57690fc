"""Our own engine's server, asked in this process: whose weights each action has, and when those go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.common.processes.messages import Completed
from marft.common.types import SamplingParams
from marft.config.models import LoraSettings, ModelSettings
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.subprocess_engine.local_server import Server
from marft.inference.subprocess_engine.messages import (
    EngineInit,
    LoadCommand,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    TokenChunk,
)
from marft.models.adapter_files import save_adapter
from marft.models.backbone import Backbone
from marft.models.tokenizer_format import load_format

LORA = LoraSettings(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj"))
PROMPT = np.arange(5, 21, dtype=np.int32)
HOW = SamplingParams(max_new_tokens=24)
ASK = SampleRequest(10, "actor", PROMPT, HOW, 123, [2])
OPTIONS = np.array([7, 8, 9], np.int32), np.array([2, 1], np.int32)


class Connection:
    """What was said to the run."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    async def heard(self, kind: type, number: int) -> Any:
        """The last message of a kind about something, once there is one."""
        while True:
            found = [one for one in self.sent if isinstance(one, kind) and one.number == number]
            if found:
                return found[-1]
            await asyncio.sleep(0.001)

    async def over(self, number: int) -> tuple[list[int], list[float], tuple[int, int]]:
        """Tokens, log-probs and versions of an action, once it is over."""
        while not (await self.heard(TokenChunk, number)).finish:
            await asyncio.sleep(0.001)
        parts = [one for one in self.sent if isinstance(one, TokenChunk) and one.number == number]
        versions = min(one.lowest for one in parts), max(one.highest for one in parts)
        tokens, log_probs = (
            [each for one in parts for each in getattr(one, name).tolist()] for name in ("tokens", "log_probs")
        )
        return tokens, log_probs, versions


@pytest.fixture
def served(backbone: Backbone, random_model: Path) -> Callable[..., None]:
    """Uses a server on a small model."""

    def run(use: Callable[[Server, Connection], Awaitable[None]], prefix_bytes: int = 0) -> None:
        thread = CallerThreadExecutor()

        async def whole() -> None:
            opened = EngineInit(
                "model", "float32", 256, 8, 2, 4, 1, {"prefix_bytes": prefix_bytes, "cuda_graphs": True}
            )
            format = load_format(ModelSettings(path=str(random_model)))
            server = Server(connection := Connection(), backbone, format, thread, opened)  # type: ignore[arg-type]
            await asyncio.wait_for(use(server, connection), 20)
            await server.engine.wait_idle()

        try:
            thread.wait_for(whole())
        finally:
            thread.shutdown()

    return run


@pytest.fixture
def adapter(backbone: Backbone, tmp_path: Path) -> Callable[[int], str]:
    """Writes an adapter of some weights."""

    def write(seed: int) -> str:
        backbone.add_adapter("written", LORA.rank, LORA.alpha, LORA.target_modules, seed=seed)
        for each in backbone.adapters("written").values():
            each.b.data.fill_(0.1 * seed)
        save_adapter(backbone.adapters("written"), LORA, "base", folder := tmp_path / f"{seed}")
        backbone.remove_adapter("written")
        return str(folder)

    return write


@pytest.fixture
def model(backbone: Backbone, tmp_path: Path) -> Callable[[float], str]:
    """Writes the whole model with its weights so many times as large."""

    def write(times: float) -> str:
        folder = tmp_path / f"whole{times}"
        weights = {name: tensor * times for name, tensor in backbone.model.state_dict().items()}
        backbone.model.save_pretrained(folder, state_dict=weights)
        return str(folder)

    return write


def assert_same(one: tuple[list[int], list[float], tuple[int, int]], other: tuple[Any, ...]) -> None:
    """Up to what float32 rounds in batches of other shapes."""
    assert (one[0], one[2]) == (other[0], other[2])
    assert one[1] == pytest.approx(other[1], abs=1e-5)


def adapters(server: Server) -> list[str]:
    return [f"actor@{number}" for number in range(9) if server.backbone.adapters(f"actor@{number}")]


def test_an_action_has_the_weights_that_it_began_with_and_they_go_with_it(
    served: Callable[..., None], adapter: Callable[[int], str]
) -> None:
    first, second = adapter(1), adapter(2)

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, first))
        server.handle(ASK)
        alone = await connection.over(10)
        server.handle(replace(ASK, number=11, stream=True))
        await connection.heard(TokenChunk, 11)
        server.handle(LoadCommand(2, "actor", 4, second))
        await connection.heard(Completed, 2)
        assert adapters(server) == ["actor@1", "actor@2"]  # the first one is still used
        server.handle(replace(ASK, number=12))
        after = await connection.over(12)
        assert_same(await connection.over(11), alone)
        assert (alone[2], after[2]) == ((3, 3), (4, 4))
        assert after[1] != pytest.approx(alone[1], abs=1e-3)
        while adapters(server) != ["actor@2"]:
            await asyncio.sleep(0.001)

    served(use)


def test_an_adapter_that_nobody_is_sampled_with_goes_with_the_next_one(
    served: Callable[..., None], adapter: Callable[[int], str]
) -> None:
    first, second = adapter(1), adapter(2)

    async def use(server: Server, connection: Connection) -> None:
        for number, folder in ((1, first), (2, second)):
            server.handle(LoadCommand(number, "actor", number, folder))
            await connection.heard(Completed, number)
        while adapters(server) != ["actor@2"]:
            await asyncio.sleep(0.001)

    served(use)


def test_whole_weights_are_replaced_once_what_began_with_them_is_over(
    served: Callable[..., None], model: Callable[[float], str]
) -> None:
    as_it_is, other = model(1.0), model(1.1)

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, as_it_is, full_model=True))
        server.handle(ASK)
        alone = await connection.over(10)
        server.handle(replace(ASK, number=11, stream=True))
        await connection.heard(TokenChunk, 11)
        server.handle(LoadCommand(2, "actor", 4, other, full_model=True))
        server.handle(replace(ASK, number=12))
        assert_same(await connection.over(11), alone)
        after = await connection.over(12)
        assert (alone[2], after[2]) == ((3, 3), (4, 4))
        assert after[1] != pytest.approx(alone[1], abs=1e-3)
        order = [
            type(one).__name__ for one in connection.sent if one.number in (2, 11, 12) and getattr(one, "finish", "x")
        ]
        assert order == ["TokenChunk", "Completed", "TokenChunk"]

    served(use)


def test_what_was_read_with_other_whole_weights_is_read_again(
    served: Callable[..., None], model: Callable[[float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.models.backbone.NODE_COST", 0)  # so that a small model goes on from what is kept
    as_it_is, other = model(1.0), model(1.1)
    long = replace(ASK, prompt=np.resize(PROMPT, 150))
    found: list[list[float]] = []

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, as_it_is, full_model=True))
        server.handle(long)
        await connection.over(10)
        server.handle(LoadCommand(2, "actor", 4, other, full_model=True))
        server.handle(replace(long, number=12))
        found.append((await connection.over(12))[1])

    for prefix_bytes in (2**20, 0):
        served(use, prefix_bytes)
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_an_action_is_sampled_as_its_request_says(served: Callable[..., None]) -> None:
    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 0))
        asked = [{}, {"temperature": 0.0}, {"top_p": 1e-6}, {"top_k": 1}]
        for number, how in enumerate(asked):
            server.handle(replace(ASK, number=20 + number, sampling=replace(HOW, **how)))  # type: ignore[arg-type]
        free, greedy, nucleus, first = [(await connection.over(20 + number))[0] for number in range(4)]
        assert greedy == nucleus == first != free

    served(use)


def test_options_are_weighed_at_their_temperature_with_the_weights_of_when_they_were_asked(
    served: Callable[..., None], adapter: Callable[[int], str]
) -> None:
    folder = adapter(1)

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, folder))
        for number, temperature in ((20, 1.0), (21, 0.5)):
            server.handle(ScoreRequest(number, "actor", PROMPT, *OPTIONS, temperature))
        server.handle(LoadCommand(2, "actor", 4))
        server.handle(ScoreRequest(22, "actor", PROMPT, *OPTIONS, 1.0))
        one, half, other = [await connection.heard(ScoreResponse, number) for number in (20, 21, 22)]
        versions = [(each.lowest, each.highest) for each in (one, half, other)]
        assert versions == [(3, 3), (3, 3), (4, 4)]
        assert one.log_probs.tolist() != other.log_probs.tolist()
        assert half.log_probs[1] != pytest.approx(one.log_probs[1])

    served(use)


def test_options_that_are_weighed_when_whole_weights_are_replaced_are_weighed_with_those_before(
    served: Callable[..., None], model: Callable[[float], str]
) -> None:
    as_it_is, other = model(1.0), model(1.1)

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, as_it_is, full_model=True))
        server.handle(ScoreRequest(20, "actor", PROMPT, *OPTIONS, 1.0))
        alone = await connection.heard(ScoreResponse, 20)
        server.handle(ScoreRequest(21, "actor", PROMPT, *OPTIONS, 1.0))
        server.handle(LoadCommand(2, "actor", 4, other, full_model=True))
        server.handle(ScoreRequest(22, "actor", PROMPT, *OPTIONS, 1.0))
        again, after = [await connection.heard(ScoreResponse, number) for number in (21, 22)]
        assert (again.lowest, after.lowest) == (3, 4)
        assert again.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
        assert after.log_probs != pytest.approx(alone.log_probs, abs=1e-3)

    served(use)


def test_an_error_here_ends_the_process(served: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    async def boom(*_: object) -> None:
        raise RuntimeError("out of memory")

    async def use(server: Server, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 0))
        monkeypatch.setattr(server.engine, "sample_row", boom)
        server.handle(ASK)
        while not ended:
            await asyncio.sleep(0.001)

    monkeypatch.setattr("os._exit", ended.append)
    served(use)
    assert ended == [1]
