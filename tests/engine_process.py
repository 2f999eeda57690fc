"""An engine whose models are in a process of their own, as behind a server: weights travel to it, requests and answers back.

::

     the run                                            the engine's process
    ┌────────────────────────────────────────┐         ┌──────────────────────────────────────────┐
    │ seats ──▶ Router ──▶ EngineProcess     │ socket  │ _Serving ──▶ LocalEngine, models          │
    │           Stillness: says when nobody  │◀───────▶│ holds its external wait until the run     │
    │           here can go on               │         │ says so, of all that it has been answered │
    └────────────────────────────────────────┘         └──────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load, save

from marft.common.errors import RunError
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.remote_error import RemoteError
from marft.common.types import Completion
from marft.config import RunSettings
from marft.config.interfaces.engine import Engine, Weights
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.engine_settings import Local
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.workers.client import SamplerClient
from marft.rollout.workers.messages import (
    VALUES,
    CancelRequest,
    ChooseRequest,
    EndRun,
    Quiescence,
    RequestResult,
    SampleRequest,
)

START = "import sys; from tests.engine_process import main; main(int(sys.argv[1]))"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Begin:
    run: bytes
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """New weights, as safetensors, by policy."""

    weights: Mapping[str, bytes]
    version: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Say when nothing is computed any more."""


@dataclass(frozen=True, slots=True)
class Settled:
    usage: Mapping[str, float]


class Elsewhere(Local):
    """A recipe names it by its import path."""

    opened: ClassVar[list[EngineProcess]] = []

    def open(
        self, run: RunSettings, models: PolicyRegistry, policies: Sequence[str], thread: CallerThreadExecutor
    ) -> EngineProcess:  # fmt: skip
        engine = EngineProcess()
        thread.wait_for(engine.start(run, policies))
        Elsewhere.opened.append(engine)
        return engine


class EngineProcess(SamplerClient):
    """The run's side. What is asked for, and how answers are heard, is what workers do with the run's engine."""

    def __init__(self) -> None:
        super().__init__(self._send_and_tell, ())
        self._versions: dict[str, int] = {}
        self._usage: Mapping[str, float] = {"sampled_tokens": 0.0}
        self._answers = 0
        self._gone: Exception | None = None
        self._stirred = asyncio.Event()

    async def start(self, run: RunSettings, policies: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            )  # fmt: skip
        self.wire = await AsyncConnection.from_socket(ours, (RequestResult, Settled, RemoteError), VALUES)
        self.wire.send(Begin(pickle.dumps(run), tuple(policies)))
        self.settled: asyncio.Future[Settled] | None = None
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tell_when_still())]

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        weights = {
            name: save({key: tensor.detach().contiguous() for key, tensor in mine.parameters().items()})
            for name, mine in policies.items()
        }
        self.wire.send(Publish(weights, version))
        self._versions.update(dict.fromkeys(policies, version))

    async def wait_idle(self) -> None:
        if self._gone:
            return
        self.settled = asyncio.get_running_loop().create_future()
        self.wire.send(Settle())
        self._usage = (await self.settled).usage

    def version(self, policy: str) -> int:
        return self._versions.get(policy, 0)

    def usage(self) -> Mapping[str, float]:
        return self._usage

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.wire.send(EndRun())
        await self.wire.drain()
        await asyncio.to_thread(self.process.wait, 10)
        self.wire.close()

    async def _send_request(self, request: SampleRequest | ChooseRequest) -> Any:
        if self._gone:
            raise self._gone
        return await super()._send_request(request)

    def _send_and_tell(self, message: object) -> None:
        self.wire.send(message)
        self._stirred.set()

    async def _listen(self) -> None:
        try:
            while True:
                for message in await self.wire.receive_together():
                    if isinstance(message, Settled):
                        assert self.settled is not None
                        self.settled.set_result(message)
                    elif isinstance(message, RemoteError):
                        self._fail(message.to_error("an engine process"))
                    else:
                        self._answers += 1
                        self.barrier.notify_activity()
                        self.deliver(message)
                        self._stirred.set()
        except EOFError:
            self._gone = RunError("the engine's process has ended")
            self._fail(self._gone)

    def _fail(self, error: Exception) -> None:
        for future in (*self._waiting.values(), self.settled):
            if future is not None and not future.done():
                future.set_exception(error)

    async def _tell_when_still(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            await self.barrier.wait()
            self.wire.send(Quiescence(self._answers))


def main(descriptor: int) -> None:
    """The engine's process: this thread computes, as the run's would."""
    thread = CallerThreadExecutor()
    thread.wait_for(_serve(socket.socket(fileno=descriptor), thread))


async def _serve(connection: socket.socket, thread: CallerThreadExecutor) -> None:
    kinds = (Begin, Publish, Settle, SampleRequest, ChooseRequest, CancelRequest, Quiescence, EndRun)
    wire = await AsyncConnection.from_socket(connection, kinds, VALUES)
    begin: Begin = await wire.receive()
    run: RunSettings = pickle.loads(begin.run)
    models = await asyncio.get_running_loop().run_in_executor(thread, PolicyRegistry, run)
    assert isinstance(run.engine, Local)
    serving = _Serving(wire, models, Local.open(run.engine, run, models, begin.policies, thread))
    try:
        while True:
            for message in await wire.receive_together():
                if isinstance(message, EndRun):
                    return
                serving.handle(message)
    except EOFError:
        return


class _Serving:
    def __init__(self, wire: AsyncConnection, models: PolicyRegistry, engine: Engine) -> None:
        self.wire, self.models, self.engine = wire, models, engine
        self.sent = 0
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.wait, self.held = ExitStack(), False

    def handle(self, message: object) -> None:
        match message:
            case SampleRequest() | ChooseRequest():
                self.hold()
                self.tasks[message.number] = asyncio.create_task(self.answer(message))
            case CancelRequest(number):
                self.tasks[number].cancel()
            case Quiescence(answers) if answers == self.sent:
                self.wait.close()
                self.held = False
            case Publish(weights, version):
                for name, tensors in weights.items():
                    mine = self.models.policies[name].parameters()
                    with torch.no_grad():
                        for key, tensor in load(tensors).items():
                            mine[key].copy_(tensor)
                self.tasks[-1] = asyncio.create_task(self.engine.publish(dict.fromkeys(weights, Any), version))  # type: ignore[arg-type,misc]
            case Settle():
                self.tasks[-2] = asyncio.create_task(self.settle())

    def hold(self) -> None:
        if not self.held:
            self.wait.enter_context(self.engine.external_wait())
            self.held = True

    async def answer(self, asked: SampleRequest | ChooseRequest) -> None:
        try:
            outcome: Any = await asked.run_on(self.engine)
        except Exception as error:  # noqa: BLE001  the run must hear of it
            self.wire.send(RemoteError.from_error(error))
            return
        assert isinstance(outcome, Completion | tuple)
        self.hold()
        self.sent += 1
        self.wire.send(RequestResult(asked.number, outcome))

    async def settle(self) -> None:
        await self.engine.wait_idle()
        self.wire.send(Settled(dict(self.engine.usage())))
