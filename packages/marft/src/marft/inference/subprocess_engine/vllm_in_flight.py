"""vLLM server with in-flight weight updates: running requests continue with new weights at their next token.

vLLM pauses between two tokens, keeps its requests, loads the weights in place and resumes (PipelineRL, Piché et al.
2025). Running requests keep their keys and values, which the older weights computed. vLLM labels each token with the
weights that sampled it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from marft.common.processes.connection import AsyncConnection
from marft.inference.subprocess_engine.messages import NO_POSITIONS, Ids
from marft.inference.subprocess_engine.server import PolicySlot
from marft.inference.subprocess_engine.vllm_server import Server, adapter_options

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM


class InFlightServer(Server):
    """Server with vLLM as the engine, and in-flight weight updates.

    A request without a token restarts after an update, because vLLM may have read keys and values of older weights for
    its prompt. So the prefix cache never gives a request keys and values of weights older than its first token's.
    """

    def __init__(self, connection: AsyncConnection, engine: AsyncLLM) -> None:
        super().__init__(connection, engine)
        self._adapter_ids: dict[str, int] = {}  # by policy; an adapter keeps its id
        self._versions: dict[str, int] = {}  # loaded version by policy
        self._new_slots: list[PolicySlot] = []
        self._update_lock = asyncio.Lock()
        self._restarting: set[str] = set()  # names of requests that an update aborted

    def _is_outdated(self, slot: PolicySlot) -> bool:  # noqa: ARG002
        """Return False: weights are replaced in place."""
        return False

    async def _load_weights(self, slot: PolicySlot, previous: PolicySlot | None) -> None:  # noqa: ARG002
        self._new_slots.append(slot)
        async with self._update_lock:
            if self._new_slots:  # the previous update did not include the slot
                await self._update()

    async def _update(self) -> None:
        """Load all new weights in one pause between two tokens."""
        await self.engine.pause_generation(mode="keep", clear_cache=False)
        try:
            slots, self._new_slots = self._new_slots, []
            for slot in slots:
                await self._replace_weights(slot)
                self._versions[slot.command.policy] = slot.command.version
            await self.engine.update_weight_version(json.dumps(self._versions))
            for slot in slots:
                slot.loaded.set()
            await self._abort_requests_without_tokens()
        finally:
            await self.engine.resume_generation()

    async def _replace_weights(self, slot: PolicySlot) -> None:
        if slot.command.full_model:
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": slot.command.path})
        elif slot.adapter:
            request = self._lora_request(slot)
            request.load_inplace = True  # a request for tokens must not load the adapter again
            await self.engine.add_lora(request)

    def _lora_request(self, slot: PolicySlot) -> LoRARequest:
        from vllm.lora.request import LoRARequest

        policy, folder = slot.command.policy, slot.command.path
        number = self._adapter_ids.setdefault(policy, slot.command.number)
        return LoRARequest(policy, number, folder, **adapter_options(folder))

    async def _abort_requests_without_tokens(self) -> None:
        states = self.engine.output_processor.request_states.values()
        names = [state.external_req_id for state in states if not state.detokenizer.num_output_tokens()]
        self._restarting.update(names)
        await self.engine.abort(names)

    async def _generate(
        self, ids: list[int], sampling: object, name: str, slot: PolicySlot
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield vLLM's outputs; restart with the current weights if an update precedes the first token."""
        policy, started, restart = slot.command.policy, False, True
        while restart:
            restart, slot = False, self._slots[policy]
            await slot.loaded.wait()
            async with aclosing(super()._generate(ids, sampling, name, slot)) as outputs:
                async for output in outputs:
                    restart = not started and self._is_stale(name, output.outputs[0], slot)
                    if restart:
                        break
                    started = True
                    yield output

    def _is_stale(self, name: str, completion: CompletionOutput, slot: PolicySlot) -> bool:
        """Return whether an update came between the start of a request and its first token."""
        if name in self._restarting:
            self._restarting.remove(name)
            return True
        versions = self._token_versions(name, completion, slot.command.policy)
        return bool((versions[:1] != slot.command.version).any())

    def _get_versions(self, name: str, completion: CompletionOutput, slot: PolicySlot) -> tuple[int, int, Ids]:
        """Return the lowest and highest version behind new tokens; and the version of each token, if mixed."""
        all_versions = self._token_versions(name, completion, slot.command.policy)
        versions = all_versions[len(all_versions) - len(completion.token_ids) :]
        lowest, highest = int(versions.min()), int(versions.max())
        return lowest, highest, versions if lowest < highest else NO_POSITIONS

    def _token_versions(self, name: str, completion: CompletionOutput, policy: str) -> Ids:
        """Return the version of each token of a request so far, [T]; vLLM lists them itself at the end alone."""
        if completion.weight_versions is not None:
            starts = [(span.version, span.start) for span in completion.weight_versions]
            count = completion.weight_versions[-1].end if starts else 0
        else:
            processor = self.engine.output_processor
            (internal_name,) = processor.external_req_ids[name]
            state = processor.request_states[internal_name]
            starts, count = state.weight_version_starts, state.detokenizer.num_output_tokens()
        versions = np.zeros(count, np.int32)
        for label, start in starts:
            versions[start:] = json.loads(label)[policy]
        return versions
