"""Server program of a subprocess engine, as far as MARFT's own engine and vLLM have it in common.

Each version of a policy has its own slot. Running requests finish with the weights of their start. The adapter of an
outdated slot is removed after its last request. Both programs import this module: only numpy is required.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from marft.common.processes.connection import AsyncConnection
from marft.inference.subprocess_engine.messages import (
    HEARTBEAT_SECONDS,
    CancelRequest,
    Heartbeat,
    LoadCommand,
    SampleRequest,
    ScoreRequest,
)


@dataclass(frozen=True, slots=True, eq=False)
class PolicySlot:
    """Policy at one version, as loaded by a command."""

    command: LoadCommand
    loaded: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Name unique to these weights."""
        return f"{self.command.policy}@{self.command.number}"

    @property
    def adapter(self) -> str | None:
        """Name of the adapter; None: the base model, or a full model in its place."""
        return self.name if self.command.path and not self.command.full_model else None


class EngineServer(ABC):
    """Server for requests from a run."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self._slots: dict[str, PolicySlot] = {}
        self._in_flight: Counter[str] = Counter()  # number of requests, by slot name
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Handle messages until the connection closes."""
        heartbeat_task = asyncio.create_task(self.send_heartbeats())
        try:
            with suppress(EOFError):
                while True:
                    self.handle(await self.connection.receive())
        finally:
            heartbeat_task.cancel()

    def handle(self, message: object) -> None:
        """Start handling a message."""
        match message:
            case SampleRequest() | ScoreRequest():
                slot = self._slots[message.policy]
                self._in_flight[slot.name] += 1
                self._requests[message.number] = task = asyncio.create_task(self._run_request(message, slot))
                task.add_done_callback(partial(self._request_done, message.number, slot))
            case CancelRequest(number):
                if number in self._requests:
                    self._requests[number].cancel()
            case LoadCommand():
                previous = self._slots.get(message.policy)
                self._slots[message.policy] = slot = PolicySlot(message)
                self._start_task(self._load(slot, previous))

    async def send_heartbeats(self) -> None:
        """Send heartbeats while the engine responds."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if await self._responds():
                self.connection.send(Heartbeat())

    def _start_task(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Exit the process after an unexpected error: the run starts another process and sends its requests again."""
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error)
            os._exit(1)

    def _request_done(self, number: int, slot: PolicySlot, task: asyncio.Task[None]) -> None:
        self._task_done(task)
        del self._requests[number]
        self._in_flight[slot.name] -= 1
        if self._is_outdated(slot):
            self._start_task(self._remove_adapter(slot))

    def _is_outdated(self, slot: PolicySlot) -> bool:
        """Return whether the adapter of a slot can be removed: newer weights are loaded, and no request uses it."""
        is_current = slot is self._slots[slot.command.policy]
        return slot.adapter is not None and not is_current and not self._in_flight[slot.name]

    async def _run_request(self, request: SampleRequest | ScoreRequest, slot: PolicySlot) -> None:
        await slot.loaded.wait()
        await (self._sample(request, slot) if isinstance(request, SampleRequest) else self._score(request, slot))

    @abstractmethod
    async def _load(self, slot: PolicySlot, previous: PolicySlot | None) -> None:
        """Switch a policy to new weights, then confirm."""

    @abstractmethod
    async def _remove_adapter(self, slot: PolicySlot) -> None: ...

    @abstractmethod
    async def _responds(self) -> bool:
        """Return whether the engine responds."""

    @abstractmethod
    async def _sample(self, request: SampleRequest, slot: PolicySlot) -> None: ...

    @abstractmethod
    async def _score(self, request: ScoreRequest, slot: PolicySlot) -> None: ...
