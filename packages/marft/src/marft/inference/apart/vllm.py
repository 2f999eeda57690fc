"""vLLM subprocesses, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from marft.config.keys import filled
from marft.config.placement import cluster_of
from marft.inference.apart.bases import open_each
from marft.inference.apart.engine import EngineApart, PolicyApart
from marft.inference.apart.environment import command, python_of
from marft.inference.apart.held import told
from marft.inference.apart.places import engine_starter
from marft.inference.apart.replicas import Once, Replicas, on_devices, spread, visible_devices
from marft.inference.apart.resting import RestingEngine
from marft.inference.apart.words import Open
from marft.inference.grammars import Grammars
from marft.inference.holding import Holding
from marft.models.paths import resolve_path
from marft.models.pool import Models, Policy

if TYPE_CHECKING:
    from marft.agents.engine import Engine
    from marft.config.run import RunSettings
    from marft.inference.caller_thread import CallerThreadExecutor

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # LoRA ranks supported by vLLM


class VllmSettings(Protocol):
    """Settings for the vLLM engine."""

    @property
    def python(self) -> str: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def devices(self) -> Sequence[str]: ...
    @property
    def sleep(self) -> bool: ...
    @property
    def patience_seconds(self) -> float: ...
    @property
    def options(self) -> Mapping[str, object]: ...


def open_vllm(
    settings: VllmSettings, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor
) -> Engine:
    """Start vLLM for each backbone that the policies use.

    Raises:
        ValueError: the Python is missing or has no vLLM, or an adapter's rank is too large.
        RunError: a process does not start.
    """
    if cluster_of(run) is None:
        python_of("vllm", settings.python)  # checked before any model loads; on a cluster, the check runs on the node

    def make(names: Sequence[str], mine: dict[str, PolicyApart]) -> EngineApart | Replicas:
        opened = _opened(settings, run, models, names)
        return _engine(settings, run, opened, _holding(models, mine))

    return open_each(models, policies, thread, make)


def _engine(
    settings: VllmSettings, run: RunSettings, opened: Open, policies: dict[str, PolicyApart]
) -> EngineApart | Replicas:
    """Build an engine, or a replicated engine.

    Raises:
        ValueError: the GPUs cannot be divided evenly among the replicas.
    """
    kind = RestingEngine if settings.sleep else EngineApart
    name, command = f"vllm ({', '.join(policies)})", partial(vllm_command, settings.python)
    devices = spread(settings.replicas, settings.devices, () if cluster_of(run) else visible_devices())
    saves = {one: Once(each.save) for one, each in policies.items() if each.save} if len(devices) > 1 else {}
    alike = {one: replace(each, save=saves.get(one, each.save)) for one, each in policies.items()}
    engines = [
        kind(
            f"{name} {number}" if saves else name, on_devices(command, mine), opened, alike, seed=run.seed,
            patience=settings.patience_seconds, starter=engine_starter(run, run.device),
        )
        for number, mine in enumerate(devices)
    ]  # fmt: skip
    return Replicas(engines, saves) if len(engines) > 1 else engines[0]


def vllm_command(python: str, descriptor: int) -> Sequence[str]:
    """Return the command for the vLLM server program, on the machine of the process.

    Raises:
        ValueError: the Python is missing or has no vLLM.
    """
    return command(python_of("vllm", python), "vllm_server", descriptor)


def _opened(settings: VllmSettings, run: RunSettings, models: Models, names: Sequence[str]) -> Open:
    some = [models.policies[name] for name in names]
    ranks = [policy.lora.rank for policy in some if policy.adapter is not None]
    room = [rank for rank in RANKS if rank >= max(ranks, default=0)]
    if not room:
        raise ValueError(f"engine: vllm has room for adapters of rank {RANKS[-1]}, and one of {names} has {max(ranks)}")
    return Open(
        resolve_path(models.base_paths[some[0].base]),
        # compute dtype, which may differ from the storage dtype
        str(some[0].backbone.head.weight.dtype).removeprefix("torch."),
        max(policy.context for policy in some),
        settings.max_rows,
        len(ranks),
        room[0],
        run.seed % 2**31,
        filled(dict(settings.options)),
        *told(some[0].tokenizer, _holding_of(some[0])),
        rests=settings.sleep,
    )


def _holding(models: Models, policies: Mapping[str, PolicyApart]) -> dict[str, PolicyApart]:
    """Add grammar masks to the policies, because vLLM does not report them."""
    return {name: replace(each, holding=_holding_of(models.policies[name])) for name, each in policies.items()}


def _holding_of(policy: Policy) -> Holding:
    return Holding(Grammars.of(policy.tokenizer, policy.stop_ids), len(policy.backbone.head.weight))
