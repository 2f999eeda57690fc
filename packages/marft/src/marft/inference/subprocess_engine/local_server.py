"""Server program for MARFT's own engine in a subprocess: the in-process engine with its own weights.

Each adapter version is loaded as a separate adapter. A full model is replaced in place after all earlier requests have
finished; new requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marft.common.errors import EpisodeFailedError
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import Completed
from marft.common.processes.remote_error import RemoteError
from marft.common.types import ActionKey, Completion, Option, SamplingParams
from marft.common.version import __version__
from marft.config.models import ModelSettings
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.choice_sampling import ChoiceRequest, score_options
from marft.inference.decoding import Alternatives, DecodeRequest
from marft.inference.local import LocalEngine, LocalPolicy
from marft.inference.subprocess_engine.messages import (
    NO_BITS,
    NO_EXPERTS,
    NO_IDS,
    NO_NUMBERS,
    NO_POSITIONS,
    TO_ENGINE,
    VALUES,
    Bits,
    EngineInit,
    EngineReady,
    Ids,
    Numbers,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    TokenChunk,
)
from marft.inference.subprocess_engine.server import EngineServer, PolicySlot
from marft.models.adapter_files import attach_adapter
from marft.models.backbone import Backbone
from marft.models.devices import keep_freed_memory
from marft.models.half_precision import store_in_half
from marft.models.loader import load_backbone, load_weights, pick_device, pick_dtype
from marft.models.tokenizer_format import TokenizerFormat, load_format

ANY_POLICY = "any"  # the only policy name; each row selects its own adapter
START_ERRORS = (ValueError, TypeError, RuntimeError, OSError, ImportError)


@dataclass(slots=True, eq=False)
class TokenStream:
    """Token stream for a request, with the number of tokens sent so far.

    Args:
        versions: pairs of a token's position and the policy version from there on.
    """

    connection: AsyncConnection
    request: SampleRequest
    versions: list[tuple[int, int]]
    sent_tokens: int = 0

    def send_token(self, token: int, log_prob: float, alternatives: Alternatives) -> None:
        """Send one token."""
        self._send(np.array([token], np.int32), np.array([log_prob], np.float32), (alternatives,))
        self.sent_tokens += 1

    def finish(self, completion: Completion) -> None:
        """Send the remaining tokens, the finish reason and the grammar masks."""
        remaining = (
            completion.tokens[self.sent_tokens :],
            completion.log_probs[self.sent_tokens :],
            completion.alternatives[self.sent_tokens :],
        )
        experts = NO_EXPERTS
        if (record := completion.experts) is not None:
            experts = record.flat.reshape(-1, record.layers, record.top_k).astype(np.int32)
        self._send(*remaining, completion.finish, *_mask_arrays(completion), experts=experts)

    def fail(self, reason: str) -> None:
        """Send the failure of the request."""
        self.connection.send(RequestFailed(self.request.number, reason))

    def _send(
        self,
        tokens: Ids,
        log_probs: Numbers,
        alternatives: Sequence[Alternatives],
        finish: str = "",
        *mask_arrays: Any,
        experts: Ids = NO_EXPERTS,
    ) -> None:
        lowest, highest, versions = self._get_versions(len(tokens))
        top_arrays = _alternative_arrays(alternatives, self.request.sampling.alternatives)
        chunk = TokenChunk(self.request.number, tokens, log_probs, finish, lowest, highest, *top_arrays, *mask_arrays)
        self.connection.send(replace(chunk, versions=versions, experts=experts))

    def _get_versions(self, count: int) -> tuple[int, int, Ids]:
        """Return the lowest and highest version of the next tokens; and the version of each token, if mixed."""
        first = self.sent_tokens if count else max(0, self.sent_tokens - 1)  # without tokens: of the last one
        versions = np.zeros(first + max(count, 1), np.int32)
        for start, version in self.versions:
            versions[start:] = version
        new = versions[first:]
        lowest, highest = int(new.min()), int(new.max())
        return lowest, highest, new if lowest < highest else NO_POSITIONS


def main(descriptor: int) -> None:
    """Serve the run at the opposite end of a connection until the connection closes.

    Tensor work runs on this thread.
    """
    thread = CallerThreadExecutor()
    with suppress(EOFError):
        thread.wait_for(_serve(socket.socket(fileno=descriptor), thread))
    thread.shutdown()


async def _serve(client: socket.socket, thread: CallerThreadExecutor) -> None:
    connection = await AsyncConnection.from_socket(client, TO_ENGINE, VALUES)
    init_message: EngineInit = await connection.receive()
    try:
        backbone, format = await asyncio.get_running_loop().run_in_executor(thread, _load_model, init_message)
    except START_ERRORS as error:
        connection.send(RemoteError(str(error), "run", ""))
        await connection.drain()
        raise
    # imported here, because it imports this module
    from marft.inference.subprocess_engine.local_in_flight import InFlightServer

    server_class = InFlightServer if init_message.in_flight else Server
    server = server_class(connection, backbone, format, thread, init_message)
    connection.send(EngineReady(os.getpid(), f"MARFT {__version__}"))
    await server.serve()


def _load_model(init_message: EngineInit) -> tuple[Backbone, TokenizerFormat]:
    options = init_message.options
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    device = pick_device(options["device"])
    if device.type == "cpu":
        keep_freed_memory()
    settings = ModelSettings.model_validate(options["base"])
    backbone = load_backbone(settings, device, pick_dtype(init_message.dtype, device))
    store_in_half(backbone)
    return backbone, load_format(settings)


class Server(EngineServer):
    """Server with MARFT's own engine.

    Args:
        thread: executor for the tensor work.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        backbone: Backbone,
        format: TokenizerFormat,
        thread: CallerThreadExecutor,
        init_message: EngineInit,
    ) -> None:
        super().__init__(connection)
        self.backbone = backbone
        self.engine = LocalEngine(
            {ANY_POLICY: LocalPolicy(backbone, None, format.tokenizer, format.stop_ids)},
            thread,
            seed=init_message.seed,
            max_rows=init_message.max_rows,
            in_order=False,
            prefix_bytes=init_message.options["prefix_bytes"],
            cuda_graphs=init_message.options["cuda_graphs"],
        )
        self._request_finished = asyncio.Event()  # set when a request finishes
        self._pending_scores: list[tuple[ScoreRequest, PolicySlot, asyncio.Future[tuple[Numbers, int]]]] = []

    async def _responds(self) -> bool:
        """Wait until the engine advances to its next token."""
        await self.engine.run_between_tokens(lambda: None)
        return True

    def _request_done(self, number: int, slot: PolicySlot, task: asyncio.Task[None]) -> None:
        super()._request_done(number, slot, task)
        self._request_finished.set()

    async def _load(self, slot: PolicySlot, previous: PolicySlot | None) -> None:
        folder = Path(slot.command.path)
        if previous:
            await previous.loaded.wait()
        if slot.command.full_model:
            while previous and self._in_flight[previous.name]:
                self._request_finished.clear()
                await self._request_finished.wait()
            await self.engine.wait_idle()
            await self.engine.run_between_tokens(lambda: self._replace_weights(folder))
        elif slot.adapter:
            await self.engine.run_between_tokens(partial(attach_adapter, self.backbone, slot.adapter, folder))
        if previous and self._is_outdated(previous):
            self._start_task(self._remove_adapter(previous))
        slot.loaded.set()
        self.connection.send(Completed(slot.command.number))

    def _replace_weights(self, folder: Path) -> None:
        load_weights(self.backbone, folder)
        self.engine.clear_cache()

    async def _remove_adapter(self, slot: PolicySlot) -> None:
        await self.engine.run_between_tokens(lambda: self.backbone.remove_adapter(slot.name))

    async def _sample(self, request: SampleRequest, slot: PolicySlot) -> None:
        loop = asyncio.get_running_loop()
        stream = TokenStream(self.connection, request, [(0, slot.command.version)])

        def token_callback(token: int, log_prob: float, alternatives: Alternatives) -> None:
            loop.call_soon_threadsafe(stream.send_token, token, log_prob, alternatives)

        row = make_row(request, slot.adapter)
        await self._sample_row(replace(row, token_callback=token_callback) if request.stream else row, stream)

    async def _sample_row(self, row: DecodeRequest, stream: TokenStream) -> None:
        """Sample a row, and send the rest of its stream or its failure."""
        number = stream.request.number
        try:
            stream.finish(await self.engine.sample_row(ANY_POLICY, row, ActionKey("", "", 0, 0, "", number)))
        except EpisodeFailedError as failure:
            stream.fail(failure.reason)

    async def _score(self, request: ScoreRequest, slot: PolicySlot) -> None:
        result: asyncio.Future[tuple[Numbers, int]] = asyncio.get_running_loop().create_future()
        self._pending_scores.append((request, slot, result))
        if len(self._pending_scores) == 1:
            self._start_task(self._score_batch())
        log_probs, version = await result
        self.connection.send(ScoreResponse(request.number, log_probs, version, version))

    async def _score_batch(self) -> None:
        """Score the options of every request from this event-loop pass, in few batched forwards."""
        await asyncio.sleep(0)
        pending, self._pending_scores = self._pending_scores, []

        def score() -> list[tuple[Numbers, int]]:
            requests = [_make_choice_request(request, self._adapter_name(slot)) for request, slot, _ in pending]
            versions = [self._loaded_version(slot) for _, slot, _ in pending]
            return list(zip(score_options(self.backbone, requests), versions, strict=True))

        for (_, _, result), scores in zip(pending, await self.engine.run_between_tokens(score), strict=True):
            if not result.done():
                result.set_result(scores)

    def _adapter_name(self, slot: PolicySlot) -> str | None:
        """Return the name of the slot's adapter in the backbone."""
        return slot.adapter

    def _loaded_version(self, slot: PolicySlot) -> int:
        """On the worker: return the version of the weights that a slot's requests use now."""
        return slot.command.version


def make_row(request: SampleRequest, adapter: str | None) -> DecodeRequest:
    """Return the row of a request."""
    sampling = request.sampling
    uniforms = np.random.Generator(np.random.Philox(request.seed)).random(sampling.max_new_tokens, np.float32)
    return DecodeRequest(adapter, request.prompt, sampling, uniforms)


def _make_choice_request(request: ScoreRequest, adapter: str | None) -> ChoiceRequest:
    parts = np.split(request.options, np.cumsum(request.sizes)[:-1])
    sampling = SamplingParams(temperature=request.temperature)
    return ChoiceRequest(adapter, request.prompt, [Option(part) for part in parts], sampling, 0.0)


def _alternative_arrays(alternatives: Sequence[Alternatives], count: int) -> tuple[Ids, Numbers]:
    """Return ids and log-probabilities of each token's alternatives, [T, count]; −∞ marks missing entries."""
    if not count:
        return NO_IDS, NO_NUMBERS
    pairs = [[*row, *[(0, -math.inf)] * (count - len(row))] for row in alternatives]
    table = np.array(pairs, np.float64).reshape(len(alternatives), count, 2)
    return table[..., 0].astype(np.int32), table[..., 1].astype(np.float32)


def _mask_arrays(completion: Completion) -> tuple[Ids, Ids, Bits, Ids]:
    """Return the grammar masks as arrays."""
    forced = np.array(completion.forced, np.int32)
    if completion.masks is None:
        return NO_POSITIONS, NO_POSITIONS, NO_BITS, forced
    return (
        completion.masks.at,
        completion.masks.which,
        np.array([list(mask) for mask in completion.masks.table], np.uint8),
        forced,
    )
