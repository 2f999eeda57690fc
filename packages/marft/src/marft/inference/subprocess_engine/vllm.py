"""vLLM subprocesses, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from marft.config.api_keys import fill_variables
from marft.config.placement import find_cluster
from marft.inference.grammar_compiler import GrammarCompiler
from marft.inference.grammar_masking import GrammarMasker
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.grammar_support import grammar_setup
from marft.inference.subprocess_engine.messages import EngineInit
from marft.inference.subprocess_engine.per_backbone import open_per_backbone
from marft.inference.subprocess_engine.placement import make_engine_launcher
from marft.inference.subprocess_engine.python_environment import build_command, find_python
from marft.inference.subprocess_engine.replicas import (
    ReplicatedEngine,
    SharedSave,
    assign_devices,
    set_visible_devices,
    visible_devices,
)
from marft.inference.subprocess_engine.sleep_mode import SleepModeEngine
from marft.models.paths import resolve_path
from marft.models.policy_registry import Policy, PolicyRegistry

if TYPE_CHECKING:
    from marft.agents.engine import Engine
    from marft.config.run import RunSettings
    from marft.inference.caller_thread import CallerThreadExecutor

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # LoRA ranks supported by vLLM


class VllmSettings(Protocol):
    """Settings for the vLLM engine."""

    @property
    def python(self) -> str: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def devices(self) -> Sequence[str]: ...
    @property
    def sleep(self) -> bool: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def engine_args(self) -> Mapping[str, object]: ...


def open_vllm(
    settings: VllmSettings,
    run: RunSettings,
    models: PolicyRegistry,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
) -> Engine:
    """Start vLLM for each backbone that the policies use.

    Raises:
        ValueError: the Python is missing or has no vLLM, or an adapter's rank is too large.
        RunError: a process does not start.
    """
    if find_cluster(run) is None:
        find_python("vllm", settings.python)  # checked before any model loads; on a cluster, the check runs on the node

    def make_engine(
        names: Sequence[str], own_policies: dict[str, SubprocessPolicy]
    ) -> SubprocessEngine | ReplicatedEngine:
        init_message = _init_message(settings, run, models, names)
        return _build_engine(settings, run, init_message, _add_grammar_maskers(models, own_policies))

    return open_per_backbone(models, policies, thread, make_engine)


def _build_engine(
    settings: VllmSettings, run: RunSettings, init_message: EngineInit, policies: dict[str, SubprocessPolicy]
) -> SubprocessEngine | ReplicatedEngine:
    """Build an engine, or a replicated engine.

    Raises:
        ValueError: the GPUs cannot be divided evenly among the replicas.
    """
    engine_class = SleepModeEngine if settings.sleep else SubprocessEngine
    name, start_command = f"vllm ({', '.join(policies)})", partial(vllm_command, settings.python)
    devices = assign_devices(settings.replicas, settings.devices, () if find_cluster(run) else visible_devices())
    saves = (
        {policy_name: SharedSave(policy.save) for policy_name, policy in policies.items() if policy.save}
        if len(devices) > 1
        else {}
    )
    shared_policies = {
        policy_name: replace(policy, save=saves.get(policy_name, policy.save))
        for policy_name, policy in policies.items()
    }
    engines = [
        engine_class(
            f"{name} {number}" if saves else name,
            set_visible_devices(start_command, own_devices),
            init_message,
            shared_policies,
            seed=run.seed,
            timeout=settings.timeout_seconds,
            starter=make_engine_launcher(run, run.device),
        )
        for number, own_devices in enumerate(devices)
    ]
    return ReplicatedEngine(engines, saves) if len(engines) > 1 else engines[0]


def vllm_command(python: str, descriptor: int) -> Sequence[str]:
    """Return the command for the vLLM server program, on the machine of the process.

    Raises:
        ValueError: the Python is missing or has no vLLM.
    """
    return build_command(find_python("vllm", python), "vllm_server", descriptor)


def _init_message(settings: VllmSettings, run: RunSettings, models: PolicyRegistry, names: Sequence[str]) -> EngineInit:
    policies = [models.policies[name] for name in names]
    ranks = [policy.lora.rank for policy in policies if policy.adapter is not None]
    supported_ranks = [rank for rank in LORA_RANKS if rank >= max(ranks, default=0)]
    if not supported_ranks:
        raise ValueError(
            f"engine: vllm has room for adapters of rank {LORA_RANKS[-1]}, and one of {names} has {max(ranks)}"
        )
    return EngineInit(
        resolve_path(models.base_paths[policies[0].base]),
        # compute dtype, which may differ from the storage dtype
        str(policies[0].backbone.head.weight.dtype).removeprefix("torch."),
        max(policy.context for policy in policies),
        settings.max_batch_size,
        len(ranks),
        supported_ranks[0],
        run.seed % 2**31,
        fill_variables(dict(settings.engine_args)),
        *grammar_setup(policies[0].tokenizer, _make_grammar_masker(policies[0])),
        sleep_mode=settings.sleep,
    )


def _add_grammar_maskers(
    models: PolicyRegistry, policies: Mapping[str, SubprocessPolicy]
) -> dict[str, SubprocessPolicy]:
    """Add grammar masks to the policies, because vLLM does not report them."""
    return {
        name: replace(policy, grammar_masker=_make_grammar_masker(models.policies[name]))
        for name, policy in policies.items()
    }


def _make_grammar_masker(policy: Policy) -> GrammarMasker:
    return GrammarMasker(
        GrammarCompiler.for_tokenizer(policy.tokenizer, policy.stop_ids), len(policy.backbone.head.weight)
    )
