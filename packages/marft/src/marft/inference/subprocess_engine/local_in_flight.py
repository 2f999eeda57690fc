"""Server of MARFT's own engine with in-flight weight updates: running requests continue with new weights.

Weights are replaced in place between two tokens (PipelineRL, Piché et al. 2025). Running requests keep their keys and
values, which the older weights computed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import Completed
from marft.common.types import Completion
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.decoding import Alternatives
from marft.inference.subprocess_engine.local_server import Server, TokenStream, make_row
from marft.inference.subprocess_engine.messages import EngineInit, SampleRequest
from marft.inference.subprocess_engine.server import PolicySlot
from marft.models.adapter_files import attach_adapter, load_adapter
from marft.models.backbone import Backbone
from marft.models.loader import load_weights
from marft.models.tokenizer_format import TokenizerFormat


@dataclass(eq=False, kw_only=True)
class Attempt(TokenStream):
    """Token stream of one attempt at a request. An update before the first token makes the attempt stale.

    Args:
        sampled_tokens: number of tokens sampled so far; it changes on the worker.
    """

    loop: asyncio.AbstractEventLoop
    sampled_tokens: int = 0
    stale: bool = False

    def add_token(self, token: int, log_prob: float, alternatives: Alternatives) -> None:
        """On the worker: count a token, and stream it if requested."""
        self.sampled_tokens += 1
        if self.request.stream and not self.stale:
            self.loop.call_soon_threadsafe(self.send_token, token, log_prob, alternatives)

    def set_version(self, version: int) -> None:
        """On the worker: record the version of the next tokens."""
        self.stale = self.stale or not self.sampled_tokens
        self.versions.append((self.sampled_tokens, version))

    def finish(self, completion: Completion) -> None:
        """Send the rest of the stream, unless the attempt is stale."""
        if not self.stale:
            super().finish(completion)

    def fail(self, reason: str) -> None:
        """Send the failure of the request, unless the attempt is stale."""
        if not self.stale:
            super().fail(reason)


class InFlightServer(Server):
    """Server with MARFT's own engine, and in-flight weight updates.

    A request without a token restarts after an update, so its prompt is computed with its first token's weights. Each
    update starts a new pass of the prefix cache, so no request reads keys and values of older weights.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        backbone: Backbone,
        format: TokenizerFormat,
        thread: CallerThreadExecutor,
        init_message: EngineInit,
    ) -> None:
        super().__init__(connection, backbone, format, thread, init_message)
        self._versions: dict[str, int] = {}  # loaded version by policy
        self._updates = 0  # number of updates so far
        self._attempts: dict[Attempt, asyncio.Task[None]] = {}

    def _is_outdated(self, slot: PolicySlot) -> bool:  # noqa: ARG002
        """Return False: weights are replaced in place."""
        return False

    def _adapter_name(self, slot: PolicySlot) -> str | None:
        return slot.command.policy if slot.adapter else None

    def _loaded_version(self, slot: PolicySlot) -> int:
        return self._versions[slot.command.policy]

    async def _load(self, slot: PolicySlot, previous: PolicySlot | None) -> None:
        if previous:
            await previous.loaded.wait()
        await self.engine.run_between_tokens(partial(self._replace_live_weights, slot))
        slot.loaded.set()
        for attempt, task in self._attempts.items():
            if attempt.stale:
                task.cancel()
        self.connection.send(Completed(slot.command.number))

    def _replace_live_weights(self, slot: PolicySlot) -> None:
        """On the worker, between two tokens: replace the weights, and record the version in the running attempts."""
        policy, folder = slot.command.policy, Path(slot.command.path)
        if slot.command.full_model:
            load_weights(self.backbone, folder)
        elif slot.adapter and policy in self._versions:
            load_adapter(self.backbone, policy, folder)
        elif slot.adapter:
            attach_adapter(self.backbone, policy, folder)
        self.engine.refresh_adapters()
        self._versions[policy] = slot.command.version
        self._updates += 1
        for attempt in list(self._attempts):
            if attempt.request.policy == policy:
                attempt.set_version(slot.command.version)

    async def _sample(self, request: SampleRequest, slot: PolicySlot) -> None:
        """Sample with the current weights; start again if an update precedes the first token."""
        stale = True
        while stale:
            slot = self._slots[request.policy]
            await slot.loaded.wait()
            attempt = Attempt(self.connection, request, [(0, slot.command.version)], loop=asyncio.get_running_loop())
            row = make_row(request, self._adapter_name(slot))
            row = replace(row, task_pass=f"{self._updates}", token_callback=attempt.add_token)
            self._attempts[attempt] = task = asyncio.create_task(self._sample_row(row, attempt))
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
                del self._attempts[attempt]
            stale = attempt.stale
        await task
