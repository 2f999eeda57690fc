"""Server program for MARFT's own engine in a subprocess: the in-process engine with its own weights.

Each adapter version is loaded as a separate adapter. Running requests finish with the weights of their start, and an
adapter without requests is removed. A full model is replaced in place after all earlier requests have finished; new
requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import traceback
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from marft.common.errors import EpisodeFailedError
from marft.common.marks import Grammar
from marft.common.types import ActionKey, Completion, Option, Sampling
from marft.common.version import __version__
from marft.config.models import ModelSettings
from marft.inference.apart.frames import Connection
from marft.inference.apart.words import (
    BEAT_SECONDS,
    NO_BITS,
    NO_IDS,
    NO_NUMBERS,
    NO_PLACES,
    TO_ENGINE,
    Alive,
    Ask,
    Bits,
    Failed,
    Forget,
    Ids,
    Load,
    Loaded,
    Numbers,
    Open,
    Ready,
    Refused,
    Said,
    Weigh,
    Weighed,
)
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.choice_sampling import ChoiceRequest, weigh
from marft.inference.decoding import Alternatives, Row
from marft.inference.local import LocalEngine, LocalPolicy
from marft.models.adapters import read_adapter
from marft.models.backbone import Backbone
from marft.models.formats import Format, load_format
from marft.models.held_in_half import hold_in_half
from marft.models.loading import load_backbone, load_weights, pick_device, pick_dtype
from marft.models.memory import keep_freed_memory

ANY = "any"  # the only policy name; each row selects its own adapter
PROBLEMS = (ValueError, TypeError, RuntimeError, OSError, ImportError)


class Slot(NamedTuple):
    """Policy at one version."""

    name: str  # adapter name, unique to these weights
    policy: str
    version: int
    adapted: bool
    there: asyncio.Event

    @property
    def adapter(self) -> str | None:
        """Adapter name for sampling; None: the base model or a full model."""
        return self.name if self.adapted else None


@dataclass(slots=True, eq=False)
class Telling:
    """Token stream for a request, with the number of tokens sent so far."""

    connection: Connection
    ask: Ask
    slot: Slot
    tokens: int = 0

    def token(self, token: int, log_prob: float, likeliest: Alternatives) -> None:
        """Send one token."""
        self._say(np.array([token], np.int32), np.array([log_prob], np.float32), (likeliest,))
        self.tokens += 1

    def end(self, done: Completion) -> None:
        """Send the remaining tokens, the finish reason and the grammar masks."""
        rest = done.tokens[self.tokens :], done.log_probs[self.tokens :], done.alternatives[self.tokens :]
        self._say(*rest, done.finish, *_held(done))

    def _say(
        self, tokens: Ids, log_probs: Numbers, likeliest: Sequence[Alternatives], finish: str = "", *held: Any
    ) -> None:
        version, tops = self.slot.version, _arrays(likeliest, self.ask.alternatives)
        self.connection.send(Said(self.ask.number, tokens, log_probs, finish, version, version, *tops, *held))


def main(descriptor: int) -> None:
    """Serve the run at the opposite end of a connection until the connection closes.

    Tensor work runs on this thread.
    """
    thread = CallerThreadExecutor()
    with suppress(EOFError):
        thread.wait_for(_serve(socket.socket(fileno=descriptor), thread))
    thread.shutdown()


async def _serve(end: socket.socket, thread: CallerThreadExecutor) -> None:
    connection = await Connection.over(end, TO_ENGINE)
    opened: Open = await connection.receive()
    try:
        backbone, format = await asyncio.get_running_loop().run_in_executor(thread, _load, opened)
    except PROBLEMS as error:
        connection.send(Refused(-1, str(error)))
        raise
    server = Server(connection, backbone, format, thread, opened)
    connection.send(Ready(f"MARFT {__version__}"))
    beating = asyncio.create_task(server.beat())
    try:
        while True:
            server.heed(await connection.receive())
    finally:
        beating.cancel()


def _load(opened: Open) -> tuple[Backbone, Format]:
    options = opened.options
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    device = pick_device(options["device"])
    if device.type == "cpu":
        keep_freed_memory()
    settings = ModelSettings.model_validate(options["base"])
    backbone = load_backbone(settings, device, pick_dtype(opened.dtype, device))
    hold_in_half(backbone)
    return backbone, load_format(settings)


class Server:
    """Server for requests from a run.

    Args:
        thread: executor for the tensor work.
    """

    def __init__(
        self, connection: Connection, backbone: Backbone, format: Format, thread: CallerThreadExecutor, opened: Open
    ) -> None:
        self.connection, self.backbone = connection, backbone
        self.engine = LocalEngine(
            {ANY: LocalPolicy(backbone, None, format.tokenizer, format.stop_ids)}, thread, seed=opened.seed,
            max_rows=opened.rows, in_order=False, prefix_bytes=opened.options["prefix_bytes"],
        )  # fmt: skip
        self._slots: dict[str, Slot] = {}
        self._under_way: Counter[str] = Counter()  # number of requests, by slot name
        self._left = asyncio.Event()  # set when a request finishes
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._to_weigh: list[tuple[Weigh, Slot, asyncio.Future[Numbers]]] = []

    def heed(self, message: object) -> None:
        """Start handling a message."""
        match message:
            case Ask() | Weigh():
                slot = self._slots[message.policy]
                self._under_way[slot.name] += 1
                self._requests[message.number] = task = asyncio.create_task(self._answer(message, slot))
                task.add_done_callback(partial(self._over, message.number, slot))
            case Forget(number):
                if number in self._requests:
                    self._requests[number].cancel()
            case Load():
                before, slot = self._slots.get(message.policy), _slot(message)
                self._slots[message.policy] = slot
                self._begin(self._take(message, slot, before))

    async def beat(self) -> None:
        """Send heartbeats while the engine advances to its next token."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.engine.between_tokens(lambda: None)
            self.connection.send(Alive())

    def _begin(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._others.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Exit the process after an unexpected error: the run starts another process and sends its requests again."""
        self._others.discard(task)
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error)
            os._exit(1)

    def _over(self, number: int, slot: Slot, task: asyncio.Task[None]) -> None:
        self._done(task)
        del self._requests[number]
        self._under_way[slot.name] -= 1
        self._left.set()
        self._give_back(slot)

    async def _take(self, load: Load, slot: Slot, before: Slot | None) -> None:
        """Switch a policy to new weights, then confirm."""
        if before:
            await before.there.wait()
        if load.whole:
            while before and self._under_way[before.name]:
                self._left.clear()
                await self._left.wait()
            await self.engine.settle()
            await self.engine.between_tokens(lambda: self._replace(Path(load.path)))
        elif slot.adapted:
            await self.engine.between_tokens(lambda: self._add(slot.name, Path(load.path)))
        if before:
            self._give_back(before)
        slot.there.set()
        self.connection.send(Loaded(load.number))

    def _add(self, name: str, folder: Path) -> None:
        read_adapter(self.backbone, name, folder)

    def _replace(self, folder: Path) -> None:
        load_weights(self.backbone, folder)
        self.engine.forget()

    def _give_back(self, slot: Slot) -> None:
        """Remove the adapter of an outdated slot after its last request."""
        if slot.adapted and slot != self._slots[slot.policy] and not self._under_way[slot.name]:
            self._begin(self.engine.between_tokens(lambda: self.backbone.remove_adapter(slot.name)))

    async def _answer(self, asked: Ask | Weigh, slot: Slot) -> None:
        await slot.there.wait()
        await (self._say(asked, slot) if isinstance(asked, Ask) else self._weigh(asked, slot))

    async def _say(self, ask: Ask, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        telling = Telling(self.connection, ask, slot)

        def teller(token: int, log_prob: float, likeliest: Alternatives) -> None:
            loop.call_soon_threadsafe(telling.token, token, log_prob, likeliest)

        sampling = Sampling(
            ask.temperature, ask.most, ask.top_p, ask.top_k, alternatives=ask.alternatives,
            grammar=Grammar(*ask.grammar) if ask.grammar else None,  # type: ignore[arg-type]
        )  # fmt: skip
        uniforms = np.random.Generator(np.random.Philox(ask.seed)).random(ask.most, np.float32)
        row = Row(slot.adapter, ask.prompt, sampling, uniforms, teller=teller if ask.tells else None)
        try:
            telling.end(await self.engine.complete(ANY, row, ActionKey("", "", 0, 0, "", ask.number)))
        except EpisodeFailedError as failure:
            self.connection.send(Failed(ask.number, failure.reason))

    async def _weigh(self, asked: Weigh, slot: Slot) -> None:
        result: asyncio.Future[Numbers] = asyncio.get_running_loop().create_future()
        self._to_weigh.append((asked, slot, result))
        if len(self._to_weigh) == 1:
            self._begin(self._weigh_together())
        self.connection.send(Weighed(asked.number, await result, slot.version, slot.version))

    async def _weigh_together(self) -> None:
        """Score the options of every request from this event-loop pass, in few batched forwards."""
        await asyncio.sleep(0)
        some, self._to_weigh = self._to_weigh, []
        requests = [_choice(asked, slot) for asked, slot, _ in some]
        found = await self.engine.between_tokens(lambda: weigh(self.backbone, requests))
        for (_, _, result), log_probs in zip(some, found, strict=True):
            if not result.done():
                result.set_result(log_probs)


def _slot(load: Load) -> Slot:
    adapted = bool(load.path) and not load.whole
    return Slot(f"{load.policy}@{load.number}", load.policy, load.version, adapted, asyncio.Event())


def _choice(asked: Weigh, slot: Slot) -> ChoiceRequest:
    parts = np.split(asked.options, np.cumsum(asked.sizes)[:-1])
    sampling = Sampling(temperature=asked.temperature)
    return ChoiceRequest(slot.adapter, asked.prompt, [Option(part) for part in parts], sampling, 0.0)


def _arrays(likeliest: Sequence[Alternatives], count: int) -> tuple[Ids, Numbers]:
    """Return ids and log-probabilities of each token's alternatives, [T, count]; −∞ marks missing entries."""
    if not count:
        return NO_IDS, NO_NUMBERS
    pairs = [[*some, *[(0, -math.inf)] * (count - len(some))] for some in likeliest]
    table = np.array(pairs, np.float64).reshape(len(likeliest), count, 2)
    return table[..., 0].astype(np.int32), table[..., 1].astype(np.float32)


def _held(done: Completion) -> tuple[Ids, Ids, Bits, Ids]:
    """Return the grammar masks as arrays."""
    forced = np.array(done.forced, np.int32)
    if done.masks is None:
        return NO_PLACES, NO_PLACES, NO_BITS, forced
    return done.masks.at, done.masks.which, np.array([list(mask) for mask in done.masks.table], np.uint8), forced
