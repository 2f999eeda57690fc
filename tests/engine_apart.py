"""A program that speaks as an engine apart does, and misbehaves as it is told: run by ``tests/marft/inference/test_engine_apart.py``.

It samples the prompt's last tokens one after the other, as likely as their place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np

from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import LENGTHS, Completed, encode_frame
from marft.common.processes.remote_error import RemoteError
from marft.inference.subprocess_engine.messages import (
    TO_ENGINE,
    VALUES,
    CancelRequest,
    EngineInit,
    EngineReady,
    Heartbeat,
    LoadCommand,
    Rejected,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    SleepCommand,
    TokenChunk,
)


def main(descriptor: int) -> None:
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(end: socket.socket) -> None:
    connection = await AsyncConnection.from_socket(end, TO_ENGINE, VALUES)
    opened: EngineInit = await connection.receive()
    does = opened.options
    if does.get("refuses"):
        connection.send(RemoteError("no such model", "run", ""))
        await asyncio.sleep(60)
    lives = _count(Path(does["folder"]) / "lives")
    log = (Path(does["folder"]) / "log").open("a", encoding="utf-8")
    if lives <= does.get("killed", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if lives <= does.get("stillborn", 0):
        print("there is no room for it", flush=True)
        os._exit(3)
    if lives <= does.get("mute", 0):
        await asyncio.sleep(60)
    connection.send(EngineReady(0, "a fake, 1.0", does.get("llguidance", "")))
    versions: dict[str, int] = {}
    while True:
        message = await connection.receive()
        log.write(
            f"{type(message).__name__}{' asleep' if isinstance(message, SleepCommand) and message.sleep else ''}\n"
        )
        log.flush()
        match message:
            case LoadCommand():
                assert not message.path or list(Path(message.path).iterdir())
                versions[message.policy] = message.version
                if lives <= does.get("leaves_loading", 0):
                    os._exit(4)
                connection.send(Completed(message.number))
            case SleepCommand():
                if lives <= does.get("dies_resting", 0):
                    os._exit(5)
                connection.send(Completed(message.number))
            case SampleRequest():
                version = versions[message.policy]
                if lives <= does.get("dies", 0):
                    connection.send(_said(message, slice(0, 1), "", version))
                    await asyncio.sleep(0.05)
                    os._exit(9)
                if lives <= does.get("hangs", 0):
                    continue
                if lives <= does.get("garbles", 0):
                    end.setblocking(True)
                    end.sendall(_garbled(does["how"], message))
                    if does["how"] == "half":
                        os._exit(6)
                    continue
                if does.get("strays"):
                    for stray in (_said(replace(message, number=10**6), slice(0, 1), "stop", 0), Completed(10**6),
                                  Rejected(10**6, "what?"), RequestFailed(10**6, "what?"), Heartbeat()):  # fmt: skip
                        connection.send(stray)
                if does.get("fails"):
                    connection.send(RequestFailed(message.number, "its grammar is too large"))
                    continue
                if does.get("slow"):
                    for _ in range(does["slow"]):
                        await asyncio.sleep(0.2)
                        connection.send(Heartbeat())
                longest = message.sampling.max_new_tokens
                half = longest // 2 if message.stream else 0
                if half:
                    connection.send(_said(message, slice(0, half), "", version))
                connection.send(_said(message, slice(half, longest), "length", version))
            case ScoreRequest():
                version = versions[message.policy]
                likely = -message.sizes.astype(np.float32) * message.temperature
                connection.send(ScoreResponse(message.number, likely, version, version))
            case CancelRequest():
                pass


def _garbled(how: str, ask: SampleRequest) -> bytes:
    """No answer to a request."""
    frame = encode_frame(_said(ask, slice(0, 2), "stop", 0))
    return {
        "noise": b"\xff" * 64,
        "half": frame[:-3],
        "huge": LENGTHS.pack(2**40, 10),
        "misfit": frame.replace(b'["#","<i4",2]', b'["#","<i4",1]'),
        "kinds": frame.replace(b'"stop"', b"123456"),
    }[how]


def _said(ask: SampleRequest, part: slice, finish: str, version: int) -> TokenChunk:
    tokens = np.resize(ask.prompt, ask.sampling.max_new_tokens)[part]
    places = np.arange(ask.sampling.max_new_tokens, dtype=np.float32)[part]
    return TokenChunk(ask.number, tokens.astype(np.int32), -places, finish, version, version)


def _count(file: Path) -> int:
    number = int(file.read_text(encoding="utf-8")) + 1 if file.is_file() else 1
    file.write_text(str(number), encoding="utf-8")
    return number
