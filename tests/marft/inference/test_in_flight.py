"""MARFT's engine in another process takes new weights between two tokens of running requests."""

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
from marft.inference.subprocess_engine.local_in_flight import Attempt, InFlightServer
from marft.inference.subprocess_engine.messages import (
    CancelRequest,
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
from tests import in_flight

LORA = LoraSettings(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj"))
PROMPT = np.arange(5, 21, dtype=np.int32)
REQUEST = SampleRequest(10, "actor", PROMPT, SamplingParams(max_new_tokens=24), 123, [])
CLOSE = 2e-5  # nats
Serve = Callable[..., None]


class Connection:
    """Connection to the run that records the messages."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    async def wait_for(self, kind: type, number: int, ready: Callable[[Any], bool] = lambda message: True) -> Any:
        """Wait for a message of a kind about a request or command."""
        while True:
            for message in self.sent:
                if isinstance(message, kind) and message.number == number and ready(message):
                    return message
            await asyncio.sleep(0.001)

    async def finished(self, number: int) -> tuple[list[int], list[float], list[int]]:
        """Return tokens, log-probs and versions of a finished request."""
        await self.wait_for(TokenChunk, number, lambda chunk: bool(chunk.finish))
        chunks = [each for each in self.sent if isinstance(each, TokenChunk) and each.number == number]
        versions = [
            version
            for chunk in chunks
            for version in (chunk.versions.tolist() if len(chunk.versions) else [chunk.lowest] * len(chunk.tokens))
        ]
        return (
            [token for chunk in chunks for token in chunk.tokens.tolist()],
            [value for chunk in chunks for value in chunk.log_probs.tolist()],
            versions,
        )


@pytest.fixture
def serve(backbone: Backbone, random_model: Path) -> Serve:
    """Run a function with a server and its connection."""

    def run(use: Callable[[InFlightServer, Connection], Awaitable[None]], max_rows: int = 8) -> None:
        thread = CallerThreadExecutor()

        async def whole() -> None:
            options = {"prefix_bytes": 2**20, "cuda_graphs": False}
            init_message = EngineInit("model", "float32", 256, max_rows, 2, 4, 1, options, in_flight=True)
            format, connection = load_format(ModelSettings(path=str(random_model))), Connection()
            server = InFlightServer(connection, backbone, format, thread, init_message)  # type: ignore[arg-type]
            await asyncio.wait_for(use(server, connection), 20)
            await server.engine.wait_idle()

        try:
            thread.wait_for(whole())
        finally:
            thread.shutdown()

    return run


@pytest.fixture
def adapters(backbone: Backbone, tmp_path: Path) -> list[str]:
    """Two adapters in PEFT format."""
    folders = []
    for seed in (1, 2):
        backbone.add_adapter("written", LORA.rank, LORA.alpha, LORA.target_modules, seed=seed)
        for each in backbone.adapters("written").values():
            each.b.data.fill_(0.1 * seed)
        save_adapter(backbone.adapters("written"), LORA, "base", tmp_path / f"{seed}")
        backbone.remove_adapter("written")
        folders.append(str(tmp_path / f"{seed}"))
    return folders


@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_continues_with_new_weights_from_the_next_token_on(
    serve: Serve, adapters: list[str], random_model: Path, stream: bool
) -> None:
    """Its log-probs are those of a model that changes its adapter there and keeps its cache."""

    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        server.handle(replace(REQUEST, stream=stream))
        server.handle(replace(REQUEST, number=11, seed=5, stream=True))  # of the same batch
        await connection.wait_for(TokenChunk, 11)
        server.handle(LoadCommand(2, "actor", 4, adapters[1]))
        for number in (10, 11):
            tokens, log_probs, versions = await connection.finished(number)
            change = versions.index(4)
            assert 0 < change < len(tokens) == 24
            assert versions == [3] * change + [4] * (24 - change)
            expected, recomputed = (
                in_flight.log_probs(random_model, adapters, PROMPT.tolist(), tokens, start) for start in (change, 0)
            )
            assert np.abs(expected - log_probs).max() < CLOSE
            assert np.abs(recomputed - log_probs)[change:].max() > 10 * CLOSE  # so the cache is that of older weights
        assert [name for name in ("actor", "actor@1", "actor@2") if server.backbone.adapters(name)] == ["actor"]

    serve(use)


def test_a_new_request_reads_no_keys_and_values_of_older_weights(
    serve: Serve, adapters: list[str], random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.models.backbone.NODE_COST", 0)  # so that a small model uses the prefix cache
    prompt = np.resize(PROMPT, 150)

    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        server.handle(replace(REQUEST, prompt=prompt))
        await connection.finished(10)
        server.handle(replace(REQUEST, number=11, prompt=prompt, seed=5, stream=True))
        await connection.wait_for(TokenChunk, 11)
        server.handle(LoadCommand(2, "actor", 4, adapters[1]))
        await connection.finished(11)  # what it leaves in the cache is of both versions
        server.handle(replace(REQUEST, number=12, prompt=prompt))
        tokens, log_probs, versions = await connection.finished(12)
        assert versions == [4] * 24
        fresh = in_flight.log_probs(random_model, adapters, prompt.tolist(), tokens, 0)
        assert np.abs(fresh - log_probs).max() < CLOSE
        before = server.engine.usage()["prefill/computed_tokens"]
        server.handle(replace(REQUEST, number=13, prompt=prompt))
        await connection.finished(13)
        assert server.engine.usage()["prefill/computed_tokens"] - before < len(prompt)  # its own version is cached

    serve(use)


def test_a_request_that_waits_for_its_first_token_starts_with_the_new_weights(
    serve: Serve, adapters: list[str], random_model: Path
) -> None:
    """It waits because the batch has a single row."""

    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        server.handle(replace(REQUEST, stream=True))
        server.handle(replace(REQUEST, number=11))
        await connection.wait_for(TokenChunk, 10)
        server.handle(LoadCommand(2, "actor", 4, adapters[1]))
        tokens, log_probs, versions = await connection.finished(11)
        assert versions == [4] * 24
        fresh = in_flight.log_probs(random_model, adapters, PROMPT.tolist(), tokens, 0)
        assert np.abs(fresh - log_probs).max() < CLOSE
        assert len([each for each in connection.sent if getattr(each, "number", 0) == 11]) == 1

    serve(use, max_rows=1)


def test_an_update_of_one_policy_leaves_the_others_alone(serve: Serve, adapters: list[str], random_model: Path) -> None:
    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        server.handle(LoadCommand(2, "other", 3, adapters[0]))
        server.handle(replace(REQUEST, policy="other", stream=True))
        await connection.wait_for(TokenChunk, 10)
        server.handle(LoadCommand(3, "actor", 4, adapters[1]))
        tokens, log_probs, versions = await connection.finished(10)
        assert versions == [3] * 24
        expected = in_flight.log_probs(random_model, adapters, PROMPT.tolist(), tokens, 24)
        assert np.abs(expected - log_probs).max() < CLOSE

    serve(use)


def test_a_full_model_is_replaced_under_running_requests(serve: Serve, backbone: Backbone, tmp_path: Path) -> None:
    weights = {name: tensor * 1.1 for name, tensor in backbone.model.state_dict().items()}
    backbone.model.save_pretrained(tmp_path / "new", state_dict=weights)
    backbone.model.save_pretrained(tmp_path / "old")

    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, f"{tmp_path / 'old'}", full_model=True))
        server.handle(replace(REQUEST, stream=True))
        await connection.wait_for(TokenChunk, 10)
        server.handle(LoadCommand(2, "actor", 4, f"{tmp_path / 'new'}", full_model=True))
        await connection.wait_for(Completed, 2)
        assert (await connection.finished(10))[2][-1] == 4
        server.handle(replace(REQUEST, number=11))
        after = await connection.finished(11)
        server.engine.clear_cache()
        server.handle(replace(REQUEST, number=12))
        assert after[:2] == (await connection.finished(12))[:2]

    serve(use)


def test_options_have_the_version_that_scored_them(serve: Serve, adapters: list[str]) -> None:
    options = np.array([7, 8, 9], np.int32), np.array([2, 1], np.int32)

    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        await connection.wait_for(Completed, 1)
        server.handle(ScoreRequest(20, "actor", PROMPT, *options, 1.0))
        before = await connection.wait_for(ScoreResponse, 20)
        server.handle(LoadCommand(2, "actor", 4, adapters[1]))
        server.handle(ScoreRequest(21, "actor", PROMPT, *options, 1.0))
        after = await connection.wait_for(ScoreResponse, 21)
        assert [(each.lowest, each.highest) for each in (before, after)] == [(3, 3), (4, 4)]
        assert before.log_probs.tolist() != after.log_probs.tolist()

    serve(use)


def test_an_attempt_that_an_update_made_stale_stays_so() -> None:
    """Its worker may sample tokens before the attempt is cancelled."""

    async def use() -> None:
        connection = Connection()
        request = replace(REQUEST, stream=True)
        attempt = Attempt(connection, request, [(0, 3)], loop=asyncio.get_running_loop())  # type: ignore[arg-type]
        attempt.set_version(4)
        attempt.add_token(7, -0.5, ())
        attempt.set_version(5)
        assert attempt.stale
        attempt.fail("cancelled")
        await asyncio.sleep(0)
        assert not connection.sent

    asyncio.run(use())


def test_a_request_that_is_cancelled_is_not_started_again(serve: Serve, adapters: list[str]) -> None:
    async def use(server: InFlightServer, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, adapters[0]))
        server.handle(replace(REQUEST, stream=True))
        server.handle(replace(REQUEST, number=11))
        await connection.wait_for(TokenChunk, 10)
        server.handle(CancelRequest(11))
        server.handle(LoadCommand(2, "actor", 4, adapters[1]))
        await connection.finished(10)
        await server.engine.wait_idle()
        assert not [each for each in connection.sent if getattr(each, "number", 0) == 11]

    serve(use, max_rows=1)
