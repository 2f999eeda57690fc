"""Server program for vLLM in a subprocess. Runs in vLLM's environment and needs no other packages.

The KV cache never mixes weights. A full model is replaced in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import Completed
from marft.common.processes.remote_error import RemoteError
from marft.common.token_data import Grammar
from marft.inference.schema_checks import serialize_schema
from marft.inference.subprocess_engine.messages import (
    NO_EXPERTS,
    NO_IDS,
    NO_NUMBERS,
    NO_POSITIONS,
    TO_ENGINE,
    VALUES,
    EngineInit,
    EngineReady,
    Ids,
    Numbers,
    Rejected,
    RequestFailed,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    SleepCommand,
    TokenChunk,
)
from marft.inference.subprocess_engine.server import EngineServer, PolicySlot

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.logprobs import Logprob
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

MAX_LOGPROBS = 128  # maximum number of ids with log-probabilities in one request
ENVIRONMENT_VARIABLES = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # warnings about resources that it cleans up after this process exits
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}


def main(descriptor: int) -> None:
    """Serve the run at the opposite end of a connection until the connection closes."""
    for name, value in ENVIRONMENT_VARIABLES.items():
        os.environ.setdefault(name, value)
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(client: socket.socket) -> None:
    connection = await AsyncConnection.from_socket(client, TO_ENGINE, VALUES)
    init_message: EngineInit = await connection.receive()
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine, program = _start_engine(init_message, Path(folder))
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, AttributeError) as error:
        connection.send(RemoteError(f"{type(error).__name__}: {error}", "run", ""))
        await connection.drain()
        raise
    connection.send(EngineReady(os.getpid(), program, version("llguidance") if init_message.tokenizer else ""))
    await _make_server(connection, engine, init_message).serve()
    engine.shutdown()


def _make_server(connection: AsyncConnection, engine: AsyncLLM, init_message: EngineInit) -> Server:
    # imported here, because it imports this module
    from marft.inference.subprocess_engine.vllm_in_flight import InFlightServer

    return (InFlightServer if init_message.in_flight else Server)(connection, engine)


def _start_engine(init_message: EngineInit, folder: Path) -> tuple[AsyncLLM, str]:
    """Start vLLM; return the engine and the program name.

    Args:
        folder: temporary folder for the tokenizer, until vLLM has loaded it.

    Raises:
        ValueError: vLLM has no argument with the name of an option, or no in-flight weight updates.
    """
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    lora: dict[str, object] = {}
    if init_message.max_adapters:
        lora = {"enable_lora": True, "max_loras": init_message.max_adapters, "max_lora_rank": init_message.max_rank}
    arguments: dict[str, object] = {
        "model": init_message.model,
        "dtype": init_message.dtype,
        "max_model_len": init_message.max_context,
        "max_num_seqs": init_message.max_rows,
        "seed": init_message.seed,
        "skip_tokenizer_init": not init_message.tokenizer,  # token ids in, token ids out
        "generation_config": "vllm",  # ignores the model's own sampling defaults: the recipe defines the sampling
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature
        "max_logprobs": MAX_LOGPROBS,
        # vLLM caches recurrent states only with chunked prefill
        "enable_prefix_caching": not (current_platform.is_cpu() and init_message.recurrent),
        "disable_log_stats": True,
        # on a CPU, chunked prefill of a request with a seed crashes vLLM 0.32
        **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
        **lora,
        **({"enable_mixed_moe_lora_format": True} if init_message.expert_adapters else {}),
        **(_grammar_arguments(init_message, folder) if init_message.tokenizer else {}),
        **({"enable_sleep_mode": True} if init_message.sleep_mode and not current_platform.is_cpu() else {}),
        **({"enable_return_routed_experts": True} if init_message.router_replay else {}),
        **init_message.options,
    }
    known = {argument.name for argument in fields(AsyncEngineArgs)}
    if init_message.router_replay and "enable_return_routed_experts" not in known:
        raise ValueError(
            f"models: vLLM {vllm.__version__} does not report experts; set router_replay = false, or install the "
            "current version with `marft engine install vllm`"
        )
    if unknown := sorted(init_message.options.keys() - known):
        raise ValueError(
            f"engine.engine_args: vLLM {vllm.__version__} takes no {', '.join(unknown)} (see its AsyncEngineArgs)"
        )
    if init_message.in_flight and not hasattr(AsyncLLM, "update_weight_version"):
        raise ValueError(
            f"engine.weight_updates: vLLM {vllm.__version__} does not report the weights behind each token; set "
            "weight_updates = 'drain', or install the current version with `marft engine install vllm`"
        )
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)), f"vLLM {vllm.__version__}"


def _grammar_arguments(init_message: EngineInit, folder: Path) -> dict[str, object]:
    """Return vLLM arguments for the same grammar masks as in the run: llguidance on the run's tokenizer."""
    from vllm.config import StructuredOutputsConfig

    (folder / "tokenizer.json").write_text(init_message.tokenizer, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": init_message.end_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"tokenizer": str(folder), "structured_outputs_config": StructuredOutputsConfig(backend="guidance")}


class Server(EngineServer):
    """Server with vLLM as the engine.

    Args:
        engine: an ``AsyncLLM``.
    """

    def __init__(self, connection: AsyncConnection, engine: AsyncLLM) -> None:
        super().__init__(connection)
        self.engine = engine

    def handle(self, message: object) -> None:
        """Start handling a message."""
        if isinstance(message, SleepCommand):
            work = self.engine.sleep(1, "wait") if message.sleep else self.engine.wake_up()
            self._start_task(self._run_command(message.number, work, "it could not rest or wake"))
        else:
            super().handle(message)

    async def _run_command(self, number: int, work: Awaitable[object], failure: str) -> None:
        """Run a command, then confirm it or report its error."""
        try:
            await work
        except Exception as error:  # noqa: BLE001  reported to the run
            self._exit_if_dead()
            self.connection.send(RemoteError(f"{failure}: {type(error).__name__}: {error}", "run", ""))
        else:
            self.connection.send(Completed(number))

    async def _responds(self) -> bool:
        try:
            await self.engine.is_sleeping()
        except Exception:  # noqa: BLE001  any error: check for a dead engine
            self._exit_if_dead()
            return False
        return True

    def _exit_if_dead(self) -> None:
        if self.engine.errored:  # the engine is dead, so this process exits and the run starts another
            os._exit(1)

    async def _load(self, slot: PolicySlot, previous: PolicySlot | None) -> None:
        work = self._load_weights(slot, previous)
        await self._run_command(slot.command.number, work, "a policy could not be loaded")

    async def _load_weights(self, slot: PolicySlot, previous: PolicySlot | None) -> None:
        if previous and self._is_outdated(previous):
            await self._remove_adapter(previous)
        if slot.command.full_model:
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": slot.command.path})
        elif slot.adapter:
            await self.engine.add_lora(self._lora_request(slot))
        slot.loaded.set()

    async def _remove_adapter(self, slot: PolicySlot) -> None:
        await self.engine.remove_lora(slot.command.number)

    async def _run_request(self, request: SampleRequest | ScoreRequest, slot: PolicySlot) -> None:
        try:
            await super()._run_request(request, slot)
        except Exception as error:  # noqa: BLE001  reported to the run
            self._exit_if_dead()
            # vLLM may not support every grammar
            error_class = RequestFailed if isinstance(request, SampleRequest) and request.sampling.grammar else Rejected
            self.connection.send(error_class(request.number, f"{type(error).__name__}: {error}"))

    async def _sample(self, request: SampleRequest, slot: PolicySlot) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        requested = request.sampling
        sampling = SamplingParams(
            temperature=requested.temperature,
            top_p=requested.top_p,
            top_k=requested.top_k,
            max_tokens=requested.max_new_tokens,
            seed=request.seed,
            stop_token_ids=request.stop_ids,
            ignore_eos=True,  # stop_ids define the end of a turn
            logprobs=requested.alternatives,
            detokenize=False,
            structured_outputs=_structured_outputs(requested.grammar) if requested.grammar else None,
            output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
        )
        name = f"{request.number}"
        async for output in self._generate(request.prompt.tolist(), sampling, name, slot):
            completion = output.outputs[0]
            if completion.finish_reason not in (None, "stop", "length"):
                raise ValueError(f"it was ended: {completion.finish_reason}")
            if not completion.token_ids and not completion.finish_reason:
                continue
            ids = np.array(completion.token_ids, np.int32)
            steps = list(zip(completion.token_ids, completion.logprobs or (), strict=True))
            log_probs = np.array([step[token].logprob for token, step in steps], np.float32)
            lowest, highest, versions = self._get_versions(name, completion, slot)
            top_arrays = _top_logprobs([step for _, step in steps], requested.alternatives)
            finish = completion.finish_reason or ""
            self.connection.send(
                TokenChunk(
                    request.number, ids, log_probs, finish, lowest, highest, *top_arrays, versions=versions,
                    experts=_experts(completion),
                )
            )  # fmt: skip

    def _get_versions(self, name: str, completion: CompletionOutput, slot: PolicySlot) -> tuple[int, int, Ids]:  # noqa: ARG002
        """Return the lowest and highest version behind new tokens; and the version of each token, if known and mixed.

        Args:
            name: name of the request in vLLM.
            completion: the new tokens.
            slot: slot at the start of the request.
        """
        lowest = slot.command.version
        if slot.adapter:
            return lowest, lowest, NO_POSITIONS
        current = self._slots[slot.command.policy]
        return lowest, (current if current.loaded.is_set() else slot).command.version, NO_POSITIONS

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

        versions = set[int]()

        async def score_prefix(
            number: int, prefix: tuple[int, ...], ids: Sequence[int]
        ) -> dict[tuple[int, ...], float]:
            name = f"{request.number}.{number}"
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
            async for output in self._generate(prompt, sampling, name, slot):
                (step,) = output.outputs[0].logprobs
                versions.update(self._get_versions(name, output.outputs[0], slot)[:2])
                return {(*prefix, id): step[id].logprob for id in ids}
            raise ValueError("no token was sampled")

        log_probs: dict[tuple[int, ...], float] = {}
        for scores in await asyncio.gather(*(score_prefix(number, *node) for number, node in enumerate(wanted))):
            log_probs.update(scores)
        sums = [sum(log_probs[option[:end]] for end in range(1, len(option) + 1)) for option in options]
        self.connection.send(ScoreResponse(request.number, np.array(sums, np.float32), min(versions), max(versions)))

    def _generate(
        self, ids: list[int], sampling: object, name: str, slot: PolicySlot
    ) -> AsyncGenerator[RequestOutput, None]:
        token_prompt = {"prompt_token_ids": ids, "cache_salt": slot.name}
        lora = self._lora_request(slot) if slot.adapter else None
        outputs: AsyncGenerator[RequestOutput, None] = self.engine.generate(
            token_prompt, sampling, name, lora_request=lora
        )
        return outputs

    def _lora_request(self, slot: PolicySlot) -> LoRARequest:
        from vllm.lora.request import LoRARequest

        options = adapter_options(slot.command.path)
        return LoRARequest(f"{slot.command.number}", slot.command.number, slot.command.path, **options)


def adapter_options(folder: str) -> dict[str, bool]:
    """Return vLLM's options for an adapter: whether it has matrices of all experts in one, as PEFT writes them."""
    file = Path(folder, "adapter_config.json")
    if not file.is_file():  # a loaded adapter, whose files have been deleted; vLLM reads the options when it loads
        return {}
    config = json.loads(file.read_text(encoding="utf-8"))
    return {"is_3d_lora_weight": True} if config.get("target_parameters") else {}


def build_prefix_tree(options: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Build the prefix tree: the possible next tokens after each prefix.

    >>> build_prefix_tree([(5, 2), (5, 3), (7, 2)])
    {(): [5, 7], (5,): [2, 3], (7,): [2]}
    """
    children: dict[tuple[int, ...], dict[int, None]] = {}
    for option in options:
        for end, token in enumerate(option):
            children.setdefault(option[:end], {})[token] = None
    return {prefix: list(following) for prefix, following in children.items()}


def _experts(completion: object) -> Ids:
    """Return the experts of prompt and tokens, [S, L, K], of a complete request with a record."""
    routed = getattr(completion, "routed_experts", None)
    return NO_EXPERTS if routed is None else routed.astype(np.int32)


def _structured_outputs(grammar: Grammar) -> object:
    """Convert a grammar to vLLM's structured-output parameters."""
    from vllm.sampling_params import StructuredOutputsParams

    text = serialize_schema(json.loads(grammar.text)) if grammar.kind == "json" else grammar.text
    return StructuredOutputsParams(**{"grammar" if grammar.kind == "lark" else grammar.kind: text})


def _top_logprobs(steps: Sequence[dict[int, Logprob]], count: int) -> tuple[Ids, Numbers]:
    """Return ids and log-probabilities of the likeliest tokens at each step, [T, count]."""
    if not count:
        return NO_IDS, NO_NUMBERS
    ranked = [sorted(step.items(), key=lambda item: item[1].rank)[:count] for step in steps]
    ids = np.array([[id for id, _ in step] for step in ranked], np.int32)
    return ids, np.array([[entry.logprob for _, entry in step] for step in ranked], np.float32)


if __name__ == "__main__":
    main(int(sys.argv[1]))
