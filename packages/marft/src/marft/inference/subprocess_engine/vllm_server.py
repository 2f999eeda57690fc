"""Server program for vLLM in a subprocess. Runs in vLLM's environment and needs no other packages.

Each adapter version has its own slot. Running requests finish with the weights of their start. The KV cache never mixes
weights, and a slot is freed with its last request. A full model is replaced in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marft.inference.schemas import serialize_schema
from marft.inference.subprocess_engine.frames import Connection
from marft.inference.subprocess_engine.messages import (
    HEARTBEAT_SECONDS,
    NO_IDS,
    NO_NUMBERS,
    TO_ENGINE,
    CancelRequest,
    CommandCompleted,
    EngineInit,
    Heartbeat,
    LoadCommand,
    Ready,
    Rejected,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    SleepCommand,
    TokenChunk,
)
from marft.inference.subprocess_engine.option_tree import build_prefix_tree

MAX_LOGPROBS = 128  # maximum number of ids with log-probabilities in one request
ENVIRONMENT_VARIABLES = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # warnings about resources that it cleans up after this process exits
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}


class PolicySlot(NamedTuple):
    """Policy at one version."""

    name: str  # unique to these weights
    policy: str
    version: int
    adapter: Any  # a LoRARequest; None: the base model, or a full model in its place
    loaded: asyncio.Event


def main(descriptor: int) -> None:
    """Serve the run at the opposite end of a connection until the connection closes."""
    for name, value in ENVIRONMENT_VARIABLES.items():
        os.environ.setdefault(name, value)
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(client: socket.socket) -> None:
    connection = await Connection.from_socket(client, TO_ENGINE)
    init_message: EngineInit = await connection.receive()
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine, program = _start_engine(init_message, Path(folder))
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, AttributeError) as error:
        connection.send(Rejected(-1, f"{type(error).__name__}: {error}"))
        raise
    connection.send(Ready(program, version("llguidance") if init_message.tokenizer else ""))
    server = Server(connection, engine)
    heartbeat_task = asyncio.create_task(server.send_heartbeats())
    with suppress(EOFError):
        while True:
            server.handle(await connection.receive())
    heartbeat_task.cancel()
    engine.shutdown()


def _start_engine(init_message: EngineInit, folder: Path) -> tuple[Any, str]:
    """Start vLLM; return the engine and the program name.

    Args:
        folder: temporary folder for the tokenizer, until vLLM has loaded it.

    Raises:
        ValueError: vLLM has no argument with the name of an option.
    """
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    lora = (
        {"enable_lora": True, "max_loras": init_message.max_adapters, "max_lora_rank": init_message.max_rank}
        if init_message.max_adapters
        else {}
    )
    arguments: dict[str, Any] = {
        "model": init_message.model,
        "dtype": init_message.dtype,
        "max_model_len": init_message.max_context,
        "max_num_seqs": init_message.max_rows,
        "seed": init_message.seed,
        "skip_tokenizer_init": not init_message.tokenizer,  # token ids in, token ids out
        "generation_config": "vllm",  # ignores the model's own sampling defaults: the recipe defines the sampling
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature
        "max_logprobs": MAX_LOGPROBS,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        # on a CPU, chunked prefill of a request with a seed crashes vLLM 0.32
        **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
        **lora,
        **(_grammar_arguments(init_message, folder) if init_message.tokenizer else {}),
        **({"enable_sleep_mode": True} if init_message.sleep_mode and not current_platform.is_cpu() else {}),
        **init_message.options,
    }
    if unknown := sorted(init_message.options.keys() - {argument.name for argument in fields(AsyncEngineArgs)}):
        raise ValueError(
            f"engine.engine_args: vLLM {vllm.__version__} takes no {', '.join(unknown)} (see its AsyncEngineArgs)"
        )
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)), f"vLLM {vllm.__version__}"


def _grammar_arguments(init_message: EngineInit, folder: Path) -> dict[str, Any]:
    """Return vLLM arguments for the same grammar masks as in the run: llguidance on the run's tokenizer."""
    from vllm.config import StructuredOutputsConfig

    (folder / "tokenizer.json").write_text(init_message.tokenizer, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": init_message.end_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"tokenizer": str(folder), "structured_outputs_config": StructuredOutputsConfig(backend="guidance")}


class Server:
    """Server for requests from a run.

    Args:
        engine: an ``AsyncLLM``.
    """

    def __init__(self, connection: Connection, engine: Any) -> None:
        self.connection, self.engine = connection, engine
        self._slots: dict[str, PolicySlot] = {}
        self._in_flight: Counter[str] = Counter()  # number of requests, by slot name
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: object) -> None:
        """Start handling a message."""
        match message:
            case SampleRequest() | ScoreRequest():
                number = message.number
                task = asyncio.create_task(self._run_request(message, self._slots[message.policy]))
                self._requests[number] = task
                task.add_done_callback(lambda _: self._requests.pop(number))
            case CancelRequest(number):
                if number in self._requests:
                    self._requests[number].cancel()
            case LoadCommand():
                previous, slot = self._slots.get(message.policy), _make_slot(message)
                self._slots[message.policy] = slot
                self._run_command(message, self._load(message, slot, previous))
            case SleepCommand(_, sleep):
                self._run_command(message, self.engine.sleep(1, "wait") if sleep else self.engine.wake_up())

    def _run_command(self, message: LoadCommand | SleepCommand, work: Coroutine[Any, Any, object]) -> None:
        """Run a command, then confirm it or report its error."""

        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  reported to the run
                self._exit_if_dead()
                failure = (
                    "a policy could not be loaded" if isinstance(message, LoadCommand) else "it could not rest or wake"
                )
                self.connection.send(Rejected(-1, f"{failure}: {type(error).__name__}: {error}"))
            else:
                self.connection.send(CommandCompleted(message.number))

        task = asyncio.create_task(run())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def send_heartbeats(self) -> None:
        """Send heartbeats while the engine responds."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self.engine.is_sleeping()
            except Exception:  # noqa: BLE001  any error: check for a dead engine
                self._exit_if_dead()
            else:
                self.connection.send(Heartbeat())

    def _exit_if_dead(self) -> None:
        if self.engine.errored:  # the engine is dead, so this process exits and the run starts another
            os._exit(1)

    async def _load(self, command: LoadCommand, slot: PolicySlot, previous: PolicySlot | None) -> None:
        if previous:
            await self._release_slot(previous)
        if command.full_model:
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": command.path})
        elif slot.adapter:
            await self.engine.add_lora(slot.adapter)
        slot.loaded.set()

    async def _release_slot(self, slot: PolicySlot) -> None:
        """Remove the adapter of an outdated slot after its last request."""
        if slot.adapter and slot != self._slots[slot.policy] and not self._in_flight[slot.name]:
            await self.engine.remove_lora(slot.adapter.lora_int_id)

    async def _run_request(self, request: SampleRequest | ScoreRequest, slot: PolicySlot) -> None:
        self._in_flight[slot.name] += 1
        try:
            await slot.loaded.wait()
            await (self._sample(request, slot) if isinstance(request, SampleRequest) else self._score(request, slot))
        except Exception as error:  # noqa: BLE001  reported to the run
            self._exit_if_dead()
            error_class = (
                RequestFailed if isinstance(request, SampleRequest) and request.grammar else Rejected
            )  # vLLM may not support every grammar
            self.connection.send(error_class(request.number, f"{type(error).__name__}: {error}"))
        finally:
            self._in_flight[slot.name] -= 1
            await self._release_slot(slot)

    async def _sample(self, request: SampleRequest, slot: PolicySlot) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop_token_ids=request.stop_ids,
            ignore_eos=True,  # stop_ids define the end of a turn
            logprobs=request.alternatives,
            detokenize=False,
            structured_outputs=_structured_outputs(*request.grammar) if request.grammar else None,
            output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
        )
        lowest = slot.version
        async for output in self._generate(request.prompt.tolist(), sampling, f"{request.number}", slot):
            completion = output.outputs[0]
            if completion.finish_reason not in (None, "stop", "length"):
                raise ValueError(f"it was ended: {completion.finish_reason}")
            if not completion.token_ids and not completion.finish_reason:
                continue
            ids = np.array(completion.token_ids, np.int32)
            steps = list(zip(completion.token_ids, completion.logprobs or (), strict=True))
            log_probs = np.array([step[token].logprob for token, step in steps], np.float32)
            highest = slot.version if slot.adapter else self._current_version(slot)
            top_arrays = _top_logprobs([step for _, step in steps], request.alternatives)
            self.connection.send(
                TokenChunk(request.number, ids, log_probs, completion.finish_reason or "", lowest, highest, *top_arrays)
            )

    def _current_version(self, slot: PolicySlot) -> int:
        """Return the version of the current weights, for a request that started with an earlier slot."""
        current = self._slots[slot.policy]
        return current.version if current.loaded.is_set() else slot.version

    async def _score(self, request: ScoreRequest, slot: PolicySlot) -> None:
        """Request the next-token log-probabilities after each option prefix, in one batch."""
        from vllm import SamplingParams

        ends = np.cumsum(request.sizes)
        options = [tuple(part.tolist()) for part in np.split(request.options, ends[:-1])]
        wanted = [
            (prefix, following[first : first + MAX_LOGPROBS])
            for prefix, following in build_prefix_tree(options).items()
            for first in range(0, len(following), MAX_LOGPROBS)
        ]

        async def score_prefix(
            number: int, prefix: tuple[int, ...], ids: Sequence[int]
        ) -> dict[tuple[int, ...], float]:
            sampling = SamplingParams(
                temperature=request.temperature,
                max_tokens=1,
                seed=0,
                ignore_eos=True,
                detokenize=False,
                logprobs=len(ids),
                logprob_token_ids=list(ids),
            )
            prompt = [*request.prompt.tolist(), *prefix]
            async for output in self._generate(prompt, sampling, f"{request.number}.{number}", slot):
                (step,) = output.outputs[0].logprobs
                return {(*prefix, id): step[id].logprob for id in ids}
            raise ValueError("no token was sampled")

        log_probs: dict[tuple[int, ...], float] = {}
        for scores in await asyncio.gather(*(score_prefix(number, *node) for number, node in enumerate(wanted))):
            log_probs.update(scores)
        sums = [sum(log_probs[option[:end]] for end in range(1, len(option) + 1)) for option in options]
        self.connection.send(ScoreResponse(request.number, np.array(sums, np.float32), slot.version, slot.version))

    def _generate(self, prompt: list[int], sampling: Any, name: str, slot: PolicySlot) -> AsyncIterator[Any]:
        token_prompt = {"prompt_token_ids": prompt, "cache_salt": slot.name}
        outputs: AsyncIterator[Any] = self.engine.generate(token_prompt, sampling, name, lora_request=slot.adapter)
        return outputs


def _make_slot(command: LoadCommand) -> PolicySlot:
    from vllm.lora.request import LoRARequest

    name = f"{command.number}"
    adapter = LoRARequest(name, command.number, command.path) if command.path and not command.full_model else None
    return PolicySlot(name, command.policy, command.version, adapter, asyncio.Event())


def _structured_outputs(kind: str, text: str) -> Any:
    """Convert a grammar to vLLM's structured-output parameters."""
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "json":
        text = serialize_schema(json.loads(text))
    return StructuredOutputsParams(**{"grammar" if kind == "lark" else kind: text})


def _top_logprobs(steps: Sequence[dict[int, Any]], count: int) -> tuple[Any, Any]:
    """Return ids and log-probabilities of the likeliest tokens at each step, [T, count]."""
    if not count:
        return NO_IDS, NO_NUMBERS
    ranked = [sorted(step.items(), key=lambda item: item[1].rank)[:count] for step in steps]
    ids = np.array([[id for id, _ in step] for step in ranked], np.int32)
    return ids, np.array([[entry.logprob for _, entry in step] for step in ranked], np.float32)


if __name__ == "__main__":
    main(int(sys.argv[1]))
