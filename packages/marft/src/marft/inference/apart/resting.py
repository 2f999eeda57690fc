"""An engine apart that gives its device's memory back while the learner has the device."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from marft.inference.apart.engine import EngineApart
from marft.inference.apart.words import Rest


class RestingEngine(EngineApart):
    """Rests once it has settled, and is awake again before anything is asked of it or loaded. One that is started again
    meanwhile rests too."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._rest: Rest | None = None  # told last
        self._turning = asyncio.Lock()

    async def settle(self) -> None:
        """Have it rest, unless somebody waits for it."""
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
        """The policies, and whether it is to rest: also to whoever waits for what the one before was told."""
        return [*super()._standing(), *([self._rest] if self._rest else [])]

    async def _turn(self, *, asleep: bool) -> None:
        async with self._turning:
            if asleep is (self._rest is not None and self._rest.asleep):
                return
            if not asleep and torch.cuda.is_available():
                torch.cuda.empty_cache()  # what the learner does not use any more is the engine's
            number = self._next()
            self._rest = Rest(number, asleep)
            await self._done(self._rest, number)
