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

from marft.inference.apart.frames import Connection
from marft.inference.apart.options import nodes
from marft.inference.apart.words import (
    BEAT_SECONDS,
    NO_IDS,
    NO_NUMBERS,
    TO_ENGINE,
    Alive,
    Ask,
    Failed,
    Forget,
    Load,
    Loaded,
    Open,
    Ready,
    Refused,
    Rest,
    Said,
    Weigh,
    Weighed,
)
from marft.inference.schemas import schema_text

MOST_AT_ONCE = 128  # maximum number of ids with log-probabilities in one request
SETTINGS = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # warnings about resources that it cleans up after this process exits
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}


class Slot(NamedTuple):
    """Policy at one version."""

    name: str  # unique to these weights
    policy: str
    version: int
    adapter: Any  # a LoRARequest; None: the base model, or a full model in its place
    there: asyncio.Event


def main(descriptor: int) -> None:
    """Serve the run at the opposite end of a connection until the connection closes."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(end: socket.socket) -> None:
    connection = await Connection.over(end, TO_ENGINE)
    opened: Open = await connection.receive()
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine, program = _start(opened, Path(folder))
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, AttributeError) as error:
        connection.send(Refused(-1, f"{type(error).__name__}: {error}"))
        raise
    connection.send(Ready(program, version("llguidance") if opened.tokenizer else ""))
    server = Server(connection, engine)
    beating = asyncio.create_task(server.beat())
    with suppress(EOFError):
        while True:
            server.heed(await connection.receive())
    beating.cancel()
    engine.shutdown()


def _start(opened: Open, folder: Path) -> tuple[Any, str]:
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

    lora = {"enable_lora": True, "max_loras": opened.adapters, "max_lora_rank": opened.rank} if opened.adapters else {}
    arguments: dict[str, Any] = {
        "model": opened.model,
        "dtype": opened.dtype,
        "max_model_len": opened.context,
        "max_num_seqs": opened.rows,
        "seed": opened.seed,
        "skip_tokenizer_init": not opened.tokenizer,  # token ids in, token ids out
        "generation_config": "vllm",  # ignores the model's own sampling defaults: the recipe defines the sampling
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature
        "max_logprobs": MOST_AT_ONCE,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        # on a CPU, chunked prefill of a request with a seed crashes vLLM 0.32
        **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
        **lora,
        **(_grammars(opened, folder) if opened.tokenizer else {}),
        **({"enable_sleep_mode": True} if opened.rests and not current_platform.is_cpu() else {}),
        **opened.options,
    }
    if unknown := sorted(opened.options.keys() - {known.name for known in fields(AsyncEngineArgs)}):
        raise ValueError(
            f"engine.options: vLLM {vllm.__version__} takes no {', '.join(unknown)} (see its AsyncEngineArgs)"
        )
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)), f"vLLM {vllm.__version__}"


def _grammars(opened: Open, folder: Path) -> dict[str, Any]:
    """Return vLLM arguments for the same grammar masks as in the run: llguidance on the run's tokenizer."""
    from vllm.config import StructuredOutputsConfig

    (folder / "tokenizer.json").write_text(opened.tokenizer, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": opened.end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"tokenizer": str(folder), "structured_outputs_config": StructuredOutputsConfig(backend="guidance")}


class Server:
    """Server for requests from a run.

    Args:
        engine: an ``AsyncLLM``.
    """

    def __init__(self, connection: Connection, engine: Any) -> None:
        self.connection, self.engine = connection, engine
        self._slots: dict[str, Slot] = {}
        self._under_way: Counter[str] = Counter()  # number of requests, by slot name
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    def heed(self, message: object) -> None:
        """Start handling a message."""
        match message:
            case Ask() | Weigh():
                number = message.number
                task = asyncio.create_task(self._answer(message, self._slots[message.policy]))
                self._requests[number] = task
                task.add_done_callback(lambda _: self._requests.pop(number))
            case Forget(number):
                if number in self._requests:
                    self._requests[number].cancel()
            case Load():
                before, slot = self._slots.get(message.policy), _slot(message)
                self._slots[message.policy] = slot
                self._do(message, self._load(message, slot, before))
            case Rest(_, asleep):
                self._do(message, self.engine.sleep(1, "wait") if asleep else self.engine.wake_up())

    def _do(self, message: Load | Rest, work: Coroutine[Any, Any, object]) -> None:
        """Run a command, then confirm it or report its error."""

        async def done() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  reported to the run
                self._end_if_dead()
                what = "a policy could not be loaded" if isinstance(message, Load) else "it could not rest or wake"
                self.connection.send(Refused(-1, f"{what}: {type(error).__name__}: {error}"))
            else:
                self.connection.send(Loaded(message.number))

        task = asyncio.create_task(done())
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def beat(self) -> None:
        """Send heartbeats while the engine responds."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self.engine.is_sleeping()
            except Exception:  # noqa: BLE001  any error: check for a dead engine
                self._end_if_dead()
            else:
                self.connection.send(Alive())

    def _end_if_dead(self) -> None:
        if self.engine.errored:  # the engine is dead, so this process exits and the run starts another
            os._exit(1)

    async def _load(self, load: Load, slot: Slot, before: Slot | None) -> None:
        if before:
            await self._give_back(before)
        if load.whole:
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": load.path})
        elif slot.adapter:
            await self.engine.add_lora(slot.adapter)
        slot.there.set()

    async def _give_back(self, slot: Slot) -> None:
        """Remove the adapter of an outdated slot after its last request."""
        if slot.adapter and slot != self._slots[slot.policy] and not self._under_way[slot.name]:
            await self.engine.remove_lora(slot.adapter.lora_int_id)

    async def _answer(self, asked: Ask | Weigh, slot: Slot) -> None:
        self._under_way[slot.name] += 1
        try:
            await slot.there.wait()
            await (self._say(asked, slot) if isinstance(asked, Ask) else self._weigh(asked, slot))
        except Exception as error:  # noqa: BLE001  reported to the run
            self._end_if_dead()
            kind = Failed if isinstance(asked, Ask) and asked.grammar else Refused  # vLLM may not support every grammar
            self.connection.send(kind(asked.number, f"{type(error).__name__}: {error}"))
        finally:
            self._under_way[slot.name] -= 1
            await self._give_back(slot)

    async def _say(self, asked: Ask, slot: Slot) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            max_tokens=asked.most,
            seed=asked.seed,
            stop_token_ids=asked.stop_ids,
            ignore_eos=True,  # stop_ids define the end of a turn
            logprobs=asked.alternatives,
            detokenize=False,
            structured_outputs=_held(*asked.grammar) if asked.grammar else None,
            output_kind=RequestOutputKind.DELTA if asked.tells else RequestOutputKind.FINAL_ONLY,
        )
        lowest = slot.version
        async for output in self._sampled(asked.prompt.tolist(), sampling, f"{asked.number}", slot):
            one = output.outputs[0]
            if one.finish_reason not in (None, "stop", "length"):
                raise ValueError(f"it was ended: {one.finish_reason}")
            if not one.token_ids and not one.finish_reason:
                continue
            ids = np.array(one.token_ids, np.int32)
            steps = list(zip(one.token_ids, one.logprobs or (), strict=True))
            log_probs = np.array([step[token].logprob for token, step in steps], np.float32)
            highest = slot.version if slot.adapter else self._whole_version(slot)
            tops = _likeliest([step for _, step in steps], asked.alternatives)
            self.connection.send(Said(asked.number, ids, log_probs, one.finish_reason or "", lowest, highest, *tops))

    def _whole_version(self, slot: Slot) -> int:
        """Return the version of the current weights, for a request that started with an earlier slot."""
        now = self._slots[slot.policy]
        return now.version if now.there.is_set() else slot.version

    async def _weigh(self, asked: Weigh, slot: Slot) -> None:
        """Request the next-token log-probabilities after each option prefix, in one batch."""
        from vllm import SamplingParams

        ends = np.cumsum(asked.sizes)
        options = [tuple(part.tolist()) for part in np.split(asked.options, ends[:-1])]
        wanted = [
            (beginning, following[first : first + MOST_AT_ONCE])
            for beginning, following in nodes(options).items()
            for first in range(0, len(following), MOST_AT_ONCE)
        ]

        async def scored(number: int, beginning: tuple[int, ...], ids: Sequence[int]) -> dict[tuple[int, ...], float]:
            sampling = SamplingParams(
                temperature=asked.temperature, max_tokens=1, seed=0, ignore_eos=True, detokenize=False,
                logprobs=len(ids), logprob_token_ids=list(ids),
            )  # fmt: skip
            prompt = [*asked.prompt.tolist(), *beginning]
            async for output in self._sampled(prompt, sampling, f"{asked.number}.{number}", slot):
                (step,) = output.outputs[0].logprobs
                return {(*beginning, id): step[id].logprob for id in ids}
            raise ValueError("no token was sampled")

        found: dict[tuple[int, ...], float] = {}
        for each in await asyncio.gather(*(scored(number, *node) for number, node in enumerate(wanted))):
            found.update(each)
        sums = [sum(found[option[:end]] for end in range(1, len(option) + 1)) for option in options]
        self.connection.send(Weighed(asked.number, np.array(sums, np.float32), slot.version, slot.version))

    def _sampled(self, prompt: list[int], sampling: Any, name: str, slot: Slot) -> AsyncIterator[Any]:
        asked = {"prompt_token_ids": prompt, "cache_salt": slot.name}
        outputs: AsyncIterator[Any] = self.engine.generate(asked, sampling, name, lora_request=slot.adapter)
        return outputs


def _slot(load: Load) -> Slot:
    from vllm.lora.request import LoRARequest

    name = f"{load.number}"
    adapter = LoRARequest(name, load.number, load.path) if load.path and not load.whole else None
    return Slot(name, load.policy, load.version, adapter, asyncio.Event())


def _held(kind: str, text: str) -> Any:
    """Convert a grammar to vLLM's structured-output parameters."""
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "json":
        text = schema_text(json.loads(text))
    return StructuredOutputsParams(**{"grammar" if kind == "lark" else kind: text})


def _likeliest(steps: Sequence[dict[int, Any]], count: int) -> tuple[Any, Any]:
    """Return ids and log-probabilities of the likeliest tokens at each step, [T, count]."""
    if not count:
        return NO_IDS, NO_NUMBERS
    ranked = [sorted(step.items(), key=lambda item: item[1].rank)[:count] for step in steps]
    ids = np.array([[id for id, _ in step] for step in ranked], np.int32)
    return ids, np.array([[one.logprob for _, one in step] for step in ranked], np.float32)


if __name__ == "__main__":
    main(int(sys.argv[1]))
