"""Subprocess engine with sleep mode: frees its device memory while the learner uses the device."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from marft.inference.apart.engine import EngineApart
from marft.inference.apart.words import Rest


class RestingEngine(EngineApart):
    """Subprocess engine with sleep mode.

    It sleeps once it is idle, and wakes before it gets a request or new weights. A process that restarts during sleep
    mode also sleeps.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._rest: Rest | None = None  # last command sent
        self._turning = asyncio.Lock()

    async def settle(self) -> None:
        """Wait for running requests, then put the engine to sleep unless new requests wait."""
        await super().settle()
        if not self._waiting:
            await self._turn(asleep=True)

    async def _asked(self, waiting: Any) -> Any:
        await self._turn(asleep=False)
        return await super()._asked(waiting)

    async def _load(self, name: str, version: int) -> None:
        await self._turn(asleep=False)
        await super()._load(name, version)

    def _standing(self) -> list[object]:
        """Return the commands for a new process: the policies and the sleep mode.

        The repeated command also answers a wait that started with the previous process.
        """
        return [*super()._standing(), *([self._rest] if self._rest else [])]

    async def _turn(self, *, asleep: bool) -> None:
        async with self._turning:
            if asleep is (self._rest is not None and self._rest.asleep):
                return
            if not asleep and torch.cuda.is_available():
                torch.cuda.empty_cache()  # memory cached by the learner becomes available to the engine
            number = self._next()
            self._rest = Rest(number, asleep)
            await self._done(self._rest, number)
