"""A program that speaks as an engine apart does, and misbehaves as it is told: run by ``tests/test_engine_apart.py``.

It samples the prompt's last tokens one after the other, as likely as their place.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import numpy as np

from marft.engines.apart.frames import Connection
from marft.engines.apart.words import TO_ENGINE, Ask, Forget, Load, Loaded, Open, Ready, Refused, Said, Weigh, Weighed


def main(descriptor: int) -> None:
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(end: socket.socket) -> None:
    connection = await Connection.over(end, TO_ENGINE)
    opened: Open = await connection.receive()
    does = opened.options
    if does.get("refuses"):
        connection.send(Refused(-1, "no such model"))
        await asyncio.sleep(60)
    lives = _count(Path(does["folder"]) / "lives")
    log = (Path(does["folder"]) / "log").open("a", encoding="utf-8")
    if lives <= does.get("stillborn", 0):
        print("there is no room for it", flush=True)
        os._exit(3)
    connection.send(Ready("a fake, 1.0"))
    versions: dict[str, int] = {}
    while True:
        message = await connection.receive()
        log.write(f"{type(message).__name__}\n")
        log.flush()
        match message:
            case Load():
                assert not message.path or list(Path(message.path).iterdir())
                versions[message.policy] = message.version
                connection.send(Loaded(message.number))
            case Ask():
                version = versions[message.policy]
                if lives <= does.get("dies", 0):
                    connection.send(_said(message, slice(0, 1), "", version))
                    await asyncio.sleep(0.05)
                    os._exit(9)
                if lives <= does.get("hangs", 0):
                    continue
                if does.get("garbles"):
                    end.setblocking(True)
                    end.sendall(b"\xff" * 64)
                    continue
                half = message.most // 2 if message.tells else 0
                if half:
                    connection.send(_said(message, slice(0, half), "", version))
                connection.send(_said(message, slice(half, message.most), "length", version))
            case Weigh():
                version = versions[message.policy]
                likely = -message.sizes.astype(np.float32) * message.temperature
                connection.send(Weighed(message.number, likely, version, version))
            case Forget():
                pass


def _said(ask: Ask, part: slice, finish: str, version: int) -> Said:
    tokens = np.resize(ask.prompt, ask.most)[part]
    places = np.arange(ask.most, dtype=np.float32)[part]
    return Said(ask.number, tokens.astype(np.int32), -places, finish, version, version)


def _count(file: Path) -> int:
    number = int(file.read_text(encoding="utf-8")) + 1 if file.is_file() else 1
    file.write_text(str(number), encoding="utf-8")
    return number
