"""How a run and its workers hear each other: in order, many messages together, until one of them has gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import MessageError
from marft.rollout.workers.messages import Quiescence


@dataclass(frozen=True)
class Anything:
    value: Any


def test_what_is_sent_in_one_pass_is_heard_in_one() -> None:
    async def whole() -> list[Sequence[Any]]:
        mine, theirs = socket.socketpair()
        one, other = [await AsyncConnection.from_socket(end, [Quiescence]) for end in (mine, theirs)]
        one.send(Quiescence(1))
        one.send(Quiescence(2))
        await asyncio.sleep(0)
        one.send(Quiescence(3))
        frames = [await other.receive_together(), await other.receive_together()]
        one.send(Quiescence(4))
        await one.drain()
        one.close()
        frames.append(await other.receive_together())
        with pytest.raises(EOFError):
            await other.receive_together()
        other.close()
        return frames

    assert asyncio.run(whole()) == [[Quiescence(1), Quiescence(2)], [Quiescence(3)], [Quiescence(4)]]


def test_a_message_that_cannot_be_sent_stops_no_other() -> None:
    """It once stopped all that came after it."""

    async def whole() -> list[Any]:
        one, other = [await AsyncConnection.from_socket(end, [Anything]) for end in socket.socketpair()]
        one.send(Anything("before"))
        for value in (10**5000, object()):
            with pytest.raises(MessageError, match="cannot be sent to another process"):
                one.send(Anything(value))
        one.send(Anything("after"))
        found = [await other.receive(), await other.receive()]
        one.send(Anything("later"))
        found.append(await other.receive())
        for connection in (one, other):
            connection.close()
        return [message.value for message in found]

    assert asyncio.run(whole()) == ["before", "after", "later"]


def test_who_goes_before_it_has_heard_all_has_gone() -> None:
    """What it was sent is in its socket yet, so the system resets the connection."""

    async def whole() -> None:
        mine, theirs = socket.socketpair()
        wire = await AsyncConnection.from_socket(mine, [Quiescence])
        wire.send(Quiescence(1))
        await wire.drain()
        theirs.close()
        with pytest.raises(EOFError):
            await wire.receive_together()
        wire.close()

    asyncio.run(whole())
