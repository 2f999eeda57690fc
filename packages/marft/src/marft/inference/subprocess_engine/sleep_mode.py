"""Subprocess engine with sleep mode: frees its device memory while the learner uses the device."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from marft.inference.subprocess_engine.engine import SubprocessEngine
from marft.inference.subprocess_engine.messages import SleepCommand


class SleepModeEngine(SubprocessEngine):
    """Subprocess engine with sleep mode.

    It sleeps once it is idle, and wakes before it gets a request or new weights. A process that restarts during sleep
    mode also sleeps.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._last_command: SleepCommand | None = None  # last command sent
        self._sleep_lock = asyncio.Lock()

    async def wait_idle(self) -> None:
        """Wait for running requests, then put the engine to sleep unless new requests wait."""
        await super().wait_idle()
        if not self._pending:
            await self._set_sleep(sleep=True)

    async def _run_request(self, request: Any) -> Any:
        await self._set_sleep(sleep=False)
        return await super()._run_request(request)

    async def _load_policy(self, name: str, version: int) -> None:
        await self._set_sleep(sleep=False)
        await super()._load_policy(name, version)

    def _startup_commands(self) -> list[object]:
        """Return the commands for a new process: the policies and the sleep mode.

        The repeated command also answers a wait that started with the previous process.
        """
        return [*super()._startup_commands(), *([self._last_command] if self._last_command else [])]

    async def _set_sleep(self, *, sleep: bool) -> None:
        async with self._sleep_lock:
            if sleep is (self._last_command is not None and self._last_command.sleep):
                return
            if not sleep and torch.cuda.is_available():
                torch.cuda.empty_cache()  # memory cached by the learner becomes available to the engine
            number = self._next_id()
            self._last_command = SleepCommand(number, sleep)
            await self._run_command(self._last_command, number)
