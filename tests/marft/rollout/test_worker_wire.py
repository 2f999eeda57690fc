"""How a run and its workers hear each other: in order, many messages together, until one of them has gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from marft.rollout.workers.messages import MessageStream, Quiescence


def test_what_is_sent_in_one_pass_is_heard_in_one() -> None:
    async def whole() -> list[Sequence[Any]]:
        mine, theirs = socket.socketpair()
        one, other = await MessageStream.open(mine), await MessageStream.open(theirs)
        one.send(Quiescence(1))
        one.send(Quiescence(2))
        await asyncio.sleep(0)
        one.send(Quiescence(3))
        frames = [await other.receive(), await other.receive()]
        one.send(Quiescence(4))
        await one.drain()
        one.close()
        frames.append(await other.receive())
        with pytest.raises(EOFError):
            await other.receive()
        other.close()
        return frames

    assert asyncio.run(whole()) == [[Quiescence(1), Quiescence(2)], [Quiescence(3)], [Quiescence(4)]]


def test_who_goes_before_it_has_heard_all_has_gone() -> None:
    """What it was sent is in its socket yet, so the system resets the connection."""

    async def whole() -> None:
        mine, theirs = socket.socketpair()
        wire = await MessageStream.open(mine)
        wire.send(Quiescence(1))
        await wire.drain()
        theirs.close()
        with pytest.raises(EOFError):
            await wire.receive()
        wire.close()

    asyncio.run(whole())
