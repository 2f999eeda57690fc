"""In-flight weight updates of vLLM's server program, with a fake vLLM that samples a token when the test says so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marft.common.processes.messages import Completed
from marft.common.types import SamplingParams
from marft.inference.subprocess_engine.messages import (
    CancelRequest,
    LoadCommand,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    TokenChunk,
)
from marft.inference.subprocess_engine.vllm_in_flight import InFlightServer

REQUEST = SampleRequest(10, "actor", np.array([5, 6], np.int32), SamplingParams(max_new_tokens=4), 123, [2])


@dataclass(eq=False)
class FakeRequest:
    """Request in the fake vLLM. A token's id is the number in the path of the weights that sampled it."""

    external_req_id: str
    salt: str
    adapter: int | None
    sampling: Any
    tokens: list[int] = field(default_factory=list)
    weight_version_starts: list[tuple[str, int]] = field(default_factory=list)
    sent: int = 0
    outputs: asyncio.Queue[SimpleNamespace] = field(default_factory=asyncio.Queue)

    @property
    def detokenizer(self) -> SimpleNamespace:
        return SimpleNamespace(num_output_tokens=lambda: len(self.tokens))

    def add_token(self, token: int, label: str) -> None:
        if not self.weight_version_starts or self.weight_version_starts[-1][0] != label:
            self.weight_version_starts.append((label, len(self.tokens)))
        self.tokens.append(token)

    def output(self, finish: str | None) -> SimpleNamespace:
        """Return the tokens since the last output."""
        tokens, self.sent = self.tokens[self.sent :], len(self.tokens)
        ids = [*tokens, *self.sampling.logprob_token_ids]
        step = {token: SimpleNamespace(logprob=-float(token), rank=1) for token in ids}
        starts = [start for _, start in self.weight_version_starts] + [len(self.tokens)]
        spans = [
            SimpleNamespace(version=version, start=start, end=end)
            for (version, start), end in zip(self.weight_version_starts, starts[1:], strict=True)
        ]
        completion = SimpleNamespace(
            token_ids=tokens, logprobs=[step] * len(tokens), finish_reason=finish, weight_versions=finish and spans
        )
        return SimpleNamespace(outputs=[completion])


class FakeVllm:
    """vLLM's interface for requests, adapters and pauses."""

    errored = False

    def __init__(self) -> None:
        self.requests: dict[str, FakeRequest] = {}  # by internal name
        self.started: list[FakeRequest] = []  # all of them, in order
        self.weights: dict[int | None, str] = {None: "0"}  # path by adapter; None: the model's own
        self.calls: list[object] = []
        self.label, self.paused = "default", False
        self.may_load = asyncio.Event()
        self.may_load.set()

    @property
    def output_processor(self) -> SimpleNamespace:
        names = {request.external_req_id: [name] for name, request in self.requests.items()}
        return SimpleNamespace(request_states=self.requests, external_req_ids=names)

    def step(self, finish: str | None = None) -> None:
        """Sample a token for each request, and send the tokens."""
        assert not self.paused
        for name, request in list(self.requests.items()):
            request.add_token(int(self.weights[request.adapter].split("/")[-1]), self.label)
            if finish:
                del self.requests[name]
            if finish or request.sampling.output_kind == "delta":
                request.outputs.put_nowait(request.output(finish))

    async def generate(
        self, prompt: dict[str, Any], sampling: Any, name: str, lora_request: Any
    ) -> AsyncGenerator[SimpleNamespace, None]:
        assert not (lora_request and lora_request.load_inplace)  # it would load the adapter at every step
        request = FakeRequest(name, prompt["cache_salt"], lora_request and lora_request.lora_int_id, sampling)
        self.started.append(request)
        internal_name = f"{name}-{len(self.started)}"
        self.requests[internal_name] = request
        try:
            while True:
                output = await request.outputs.get()
                yield output
                if output.outputs[0].finish_reason:
                    return
        finally:
            self.requests.pop(internal_name, None)

    async def abort(self, names: Sequence[str]) -> None:
        for internal_name, request in list(self.requests.items()):
            if request.external_req_id in names:
                del self.requests[internal_name]
                request.outputs.put_nowait(request.output("abort"))

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.paused = True
        self.calls.append(("pause", mode, clear_cache))

    async def resume_generation(self) -> None:
        self.paused = False
        self.calls.append("resume")

    async def add_lora(self, request: Any) -> None:
        assert self.paused
        assert request.load_inplace
        await self.may_load.wait()
        self.weights[request.lora_int_id] = request.lora_path
        self.calls.append(request.lora_path)

    async def collective_rpc(self, name: str, kwargs: dict[str, str]) -> None:
        assert self.paused
        self.weights[None] = kwargs["weights_path"]
        self.calls.append((name, kwargs["weights_path"]))

    async def update_weight_version(self, label: str) -> None:
        assert self.paused
        self.label = label

    async def is_sleeping(self) -> bool:
        return False


class Connection:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def versions(self, number: int) -> list[int]:
        """Return the version of each token that was sent for a request."""
        chunks = [chunk for chunk in self.sent if isinstance(chunk, TokenChunk) and chunk.number == number]
        for chunk in chunks:
            assert len(chunk.versions) == (len(chunk.tokens) if chunk.lowest < chunk.highest else 0)
        return [
            version
            for chunk in chunks
            for version in (chunk.versions.tolist() if len(chunk.versions) else [chunk.lowest] * len(chunk.tokens))
        ]

    def tokens(self, number: int) -> list[int]:
        chunks = [chunk for chunk in self.sent if isinstance(chunk, TokenChunk) and chunk.number == number]
        return [token for chunk in chunks for token in chunk.tokens.tolist()]


@dataclass
class FakeLoraRequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@pytest.fixture(autouse=True)
def fake_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of vLLM that the server imports."""

    def parameters(**given: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"logprob_token_ids": (), "output_kind": "final", **given})

    modules: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": parameters},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta", FINAL_ONLY="final")},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": FakeLoraRequest},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


async def settle() -> None:
    """Run the event loop until nothing happens."""
    for _ in range(30):
        await asyncio.sleep(0)


def serve(use: Callable[[InFlightServer, FakeVllm, Connection], Awaitable[None]]) -> None:
    async def whole() -> None:
        engine, connection = FakeVllm(), Connection()
        await use(InFlightServer(connection, engine), engine, connection)  # type: ignore[arg-type]

    asyncio.run(whole())


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_after_an_update_come_from_the_new_weights_and_say_so(stream: bool) -> None:
    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/103"))
        server.handle(LoadCommand(2, "other", 3, "/weights/203"))
        await settle()
        server.handle(replace(REQUEST, stream=stream))
        server.handle(replace(REQUEST, number=11, policy="other", stream=stream))
        await settle()
        engine.step()
        engine.step()
        server.handle(LoadCommand(3, "actor", 4, "/weights/104"))
        await settle()
        engine.step("length")
        await settle()
        assert connection.tokens(10) == [103, 103, 104]
        assert connection.versions(10) == [3, 3, 4]
        assert connection.tokens(11) == [203] * 3
        assert connection.versions(11) == [3] * 3
        assert len(engine.started) == 2  # no request started again
        assert engine.calls[-3:] == [("pause", "keep", False), "/weights/104", "resume"]
        assert sorted(name for name in engine.weights if name) == [1, 2]  # in place: no further adapter
        assert [each.number for each in connection.sent if isinstance(each, Completed)] == [1, 2, 3]

    serve(use)


def test_tokens_that_arrive_together_keep_their_own_versions() -> None:
    """A consumer that is late receives tokens from before and after an update in one output."""

    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3"))
        await settle()
        server.handle(replace(REQUEST, stream=True))
        await settle()
        engine.step()
        await settle()
        (request,) = engine.started
        request.sampling.output_kind = "late"
        engine.step()
        server.handle(LoadCommand(2, "actor", 4, "/weights/4"))
        await settle()
        engine.step()
        request.sampling.output_kind = "delta"
        engine.step()
        await settle()
        assert connection.versions(10) == connection.tokens(10) == [3, 3, 4, 4]
        chunks = [chunk for chunk in connection.sent if isinstance(chunk, TokenChunk)]
        assert [(chunk.lowest, chunk.highest) for chunk in chunks] == [(3, 3), (3, 4)]

    serve(use)


def test_requests_without_a_token_start_again_under_the_salt_of_the_new_weights() -> None:
    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3"))
        await settle()
        server.handle(REQUEST)
        await settle()
        engine.step()
        server.handle(replace(REQUEST, number=11))  # vLLM has computed nothing of it, or its prompt alone
        await settle()
        server.handle(LoadCommand(2, "actor", 4, "/weights/4"))
        await settle()
        server.handle(replace(REQUEST, number=12))
        await settle()
        salts = [(request.external_req_id, request.salt) for request in engine.started]
        assert salts == [("10", "actor@1"), ("11", "actor@1"), ("11", "actor@2"), ("12", "actor@2")]
        engine.step("length")
        await settle()
        assert [connection.versions(number) for number in (10, 11, 12)] == [[3, 4], [4], [4]]

    serve(use)


def test_a_request_that_vllm_takes_during_an_update_starts_again() -> None:
    """The update could not abort it, and its first token has newer weights than its salt says."""

    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3"))
        await settle()
        server.handle(replace(REQUEST, stream=True))
        await settle()
        ((name, request),) = engine.requests.items()
        del engine.requests[name]  # vLLM does not list it yet
        server.handle(LoadCommand(2, "actor", 4, "/weights/4"))
        await settle()
        engine.requests[name] = request
        engine.step()
        await settle()
        assert connection.tokens(10) == []
        engine.step("length")
        await settle()
        assert [request.salt for request in engine.started] == ["actor@1", "actor@2"]
        assert connection.versions(10) == connection.tokens(10) == [4]

    serve(use)


def test_weights_that_arrive_during_an_update_share_the_next_pause() -> None:
    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        engine.may_load.clear()
        for number, policy in enumerate(("actor", "other", "third"), 1):
            server.handle(LoadCommand(number, policy, 3, f"/weights/{number}"))
        await settle()
        engine.may_load.set()
        await settle()
        assert engine.calls == [
            ("pause", "keep", False), "/weights/1", "resume",
            ("pause", "keep", False), "/weights/2", "/weights/3", "resume",
        ]  # fmt: skip
        assert [each.number for each in connection.sent] == [1, 2, 3]

    serve(use)


def test_a_full_model_is_replaced_in_a_pause() -> None:
    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3", full_model=True))
        await settle()
        server.handle(REQUEST)
        await settle()
        engine.step()
        server.handle(LoadCommand(2, "actor", 4, "/weights/4", full_model=True))
        await settle()
        engine.step("stop")
        await settle()
        assert connection.versions(10) == connection.tokens(10) == [3, 4]
        assert ("reload_weights", "/weights/4") in engine.calls

    serve(use)


def test_options_have_the_versions_that_scored_them() -> None:
    options, sizes = np.array([7, 8, 9], np.int32), np.array([2, 1], np.int32)

    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3"))
        await settle()
        server.handle(ScoreRequest(20, "actor", np.array([1], np.int32), options, sizes, 1.0))
        await settle()
        server.handle(LoadCommand(2, "actor", 4, "/weights/4"))
        await settle()
        engine.step("length")
        await settle()
        response = connection.sent[-1]
        assert isinstance(response, ScoreResponse)
        assert (response.lowest, response.highest) == (4, 4)

    serve(use)


def test_a_cancelled_request_ends_with_an_update() -> None:
    async def use(server: InFlightServer, engine: FakeVllm, connection: Connection) -> None:
        server.handle(LoadCommand(1, "actor", 3, "/weights/3"))
        await settle()
        server.handle(REQUEST)
        await settle()
        server.handle(LoadCommand(2, "actor", 4, "/weights/4"))
        server.handle(CancelRequest(10))
        await settle()
        assert not engine.requests
        assert connection.versions(10) == []

    serve(use)
