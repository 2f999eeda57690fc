"""Start the subprocess engines of a run: one for each set of base weights, with copies of its policies.

An engine's process is started by a launcher (:mod:`marft.common.processes.launcher`), on this machine or on a cluster.
It runs one of two programs: :mod:`~marft.inference.subprocess_engine.local_server` on the current Python, or
:mod:`~marft.inference.subprocess_engine.vllm_server` on the Python of an environment with vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from marft.common.errors import UserError
from marft.common.processes.child_process import python_command
from marft.common.processes.launcher import Launcher
from marft.config.bundled import resolve_path
from marft.config.interfaces.engine import Engine
from marft.config.models import VLLM_LORA_RANKS
from marft.config.run import RunSettings
from marft.config.secrets import fill_variables
from marft.config.sections import find_cluster, open_launcher
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.grammar_masking import GrammarMasker, grammar_setup
from marft.inference.router import Router
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.messages import EngineInit
from marft.inference.subprocess_engine.python_environment import build_command, find_python
from marft.inference.subprocess_engine.replicas import (
    ReplicatedEngine,
    SharedSave,
    assign_devices,
    set_visible_devices,
    visible_devices,
)
from marft.models.loader import pick_device
from marft.models.policy_registry import Policy, PolicyRegistry

if TYPE_CHECKING:
    from marft.inference.engine_settings import Process, Vllm

# arguments for vLLM, which quantizes with bitsandbytes itself; a quantized checkpoint names its method
VLLM_QUANTIZATION: Mapping[str, Mapping[str, object]] = {"none": {}, "nf4": {"quantization": "bitsandbytes"}}
LOCAL_SERVER = "marft.inference.subprocess_engine.local_server"


def open_process(
    settings: Process,
    run: RunSettings,
    models: PolicyRegistry,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
) -> Engine:
    """Start a process with MARFT's own engine for each backbone that the policies use.

    Raises:
        RunError: a process does not start.
    """

    def make_engine(names: Sequence[str], own_policies: dict[str, SubprocessPolicy]) -> SubprocessEngine:
        return SubprocessEngine(
            f"the engine's process ({', '.join(names)})",
            partial(python_command, LOCAL_SERVER),
            build_process_init_message(settings, run, models, names),
            own_policies,
            seed=run.seed,
            timeout=settings.timeout_seconds,
            launcher=make_engine_launcher(run, settings.device or run.device),
        )

    return open_per_backbone(models, policies, thread, make_engine)


def build_process_init_message(
    settings: Process, run: RunSettings, models: PolicyRegistry, names: Sequence[str]
) -> EngineInit:
    """Return the first message to a process with MARFT's own engine, for policies on one backbone."""
    policies = [models.policies[name] for name in names]
    base = run.models[policies[0].base]
    return EngineInit(
        base.path,
        "float32" if policies[0].settings.train == "full" and not policies[0].backbone.is_half else base.dtype,
        max(policy.context for policy in policies),
        settings.max_batch_size,
        sum(policy.adapter is not None for policy in policies),
        max((policy.lora.rank for policy in policies if policy.adapter is not None), default=0),
        run.seed,
        {
            "base": base.model_dump(mode="json", exclude_none=True),
            "device": engine_device(run, settings.device or run.device),
            "threads": settings.threads or run.threads,
            "prefix_bytes": settings.prefix_cache_mb * 2**20,
            "cuda_graphs": not settings.enforce_eager,
        },
        in_flight=settings.weight_updates == "in_flight",
    )


def open_vllm(
    settings: Vllm,
    run: RunSettings,
    models: PolicyRegistry,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
) -> Engine:
    """Start vLLM for each backbone that the policies use.

    Raises:
        UserError: the Python is missing or has no vLLM, an adapter's rank is too large, or the GPUs cannot be divided
            evenly among the replicas.
        RunError: a process does not start.
    """
    if find_cluster(run) is None:
        find_python("vllm", settings.python)  # checked before any model loads; on a cluster, the check runs on the node

    def make_engine(
        names: Sequence[str], own_policies: dict[str, SubprocessPolicy]
    ) -> SubprocessEngine | ReplicatedEngine:
        # vLLM does not report grammar masks
        masked_policies = {
            name: replace(policy, grammar_masker=_make_grammar_masker(models.policies[name]))
            for name, policy in own_policies.items()
        }
        return _build_replicas(settings, run, vllm_init_message(settings, run, models, names), masked_policies)

    return open_per_backbone(models, policies, thread, make_engine)


def _build_replicas(
    settings: Vllm, run: RunSettings, init_message: EngineInit, policies: dict[str, SubprocessPolicy]
) -> SubprocessEngine | ReplicatedEngine:
    """Build a vLLM engine, or a replicated one."""
    name, start_command = f"vllm ({', '.join(policies)})", partial(vllm_command, settings.python)
    devices = assign_devices(settings.replicas, settings.devices, () if find_cluster(run) else visible_devices())
    saves = dict[str, SharedSave]()
    if len(devices) > 1:
        saves = {policy_name: SharedSave(policy.save) for policy_name, policy in policies.items() if policy.save}
    shared_policies = {
        policy_name: replace(policy, save=saves.get(policy_name, policy.save))
        for policy_name, policy in policies.items()
    }
    engines = [
        SubprocessEngine(
            f"{name} {number}" if saves else name,
            set_visible_devices(start_command, own_devices),
            init_message,
            shared_policies,
            seed=run.seed,
            timeout=settings.timeout_seconds,
            launcher=make_engine_launcher(run, run.device),
        )
        for number, own_devices in enumerate(devices)
    ]
    return ReplicatedEngine(engines, saves) if len(engines) > 1 else engines[0]


def vllm_command(python: str, descriptor: int) -> Sequence[str]:
    """Return the command for the vLLM server program, on the machine of the process.

    Raises:
        UserError: the Python is missing or has no vLLM.
    """
    return build_command(find_python("vllm", python), "vllm_server", descriptor)


def vllm_init_message(settings: Vllm, run: RunSettings, models: PolicyRegistry, names: Sequence[str]) -> EngineInit:
    """Return the first message to a vLLM process, for policies on one backbone.

    Raises:
        UserError: an adapter's rank is too large.
    """
    policies = [models.policies[name] for name in names]
    ranks = [policy.lora.rank for policy in policies if policy.adapter is not None]
    supported_ranks = [rank for rank in VLLM_LORA_RANKS if rank >= max(ranks, default=0)]
    if not supported_ranks:
        raise UserError(
            f"engine: vllm has room for adapters of rank {VLLM_LORA_RANKS[-1]}, and one of {names} has {max(ranks)}"
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
        {**VLLM_QUANTIZATION[run.models[policies[0].base].quantization], **fill_variables(dict(settings.engine_args))},
        *grammar_setup(policies[0].tokenizer, _make_grammar_masker(policies[0])),
        sleep_mode=settings.sleep,
        in_flight=settings.weight_updates == "in_flight",
        router_replay=run.models[policies[0].base].router_replay,
        expert_adapters=any(policy.lora.target_parameters for policy in policies if policy.adapter is not None),
        recurrent=policies[0].backbone.recurrent,
    )


def _make_grammar_masker(policy: Policy) -> GrammarMasker:
    return GrammarMasker.for_model(policy.tokenizer, policy.stop_ids, policy.backbone)


def open_per_backbone(
    models: PolicyRegistry,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
    make: Callable[[Sequence[str], dict[str, SubprocessPolicy]], SubprocessEngine | ReplicatedEngine],
) -> Engine:
    """Start an engine for each backbone that the policies use.

    Args:
        make: builds an engine for the policies on one backbone, given by name.

    Raises:
        RunError: an engine does not start.
    """
    policies_by_backbone: dict[int, list[str]] = {}
    for name in policies:
        policies_by_backbone.setdefault(id(models.policies[name].backbone), []).append(name)
    engines: dict[str, Engine] = {}
    try:
        for names in policies_by_backbone.values():
            engine = make(names, {name: _build_policy(models, name) for name in names})
            engines.update(dict.fromkeys(names, engine))
            thread.wait_for(engine.start())
    except BaseException:
        thread.wait_for(Router(engines).close())
        raise
    return Router(engines)


def _build_policy(models: PolicyRegistry, name: str) -> SubprocessPolicy:
    policy = models.policies[name]
    full_model = policy.settings.train == "full"
    save = partial(models.save_policy, name) if full_model or policy.adapter else None
    return SubprocessPolicy(policy.tokenizer, policy.stop_ids, save, full_model)


def make_engine_launcher(run: RunSettings, device: str) -> Launcher:
    """Return the launcher for an engine's process.

    On a cluster, the process requests the number of GPUs in the recipe. Without this setting, it requests one GPU if it
    computes on a GPU.

    Args:
        device: device name from the recipe.

    Raises:
        UserError: the run cannot join the cluster.
        RunError: the cluster has no room for the process.
    """
    cluster = find_cluster(run)
    gpus = None if cluster is None else cluster.gpus_for("engine") or float(engine_device(run, device) == "cuda")
    return open_launcher(run, "engine", 1, gpus)


def engine_device(run: RunSettings, device: str) -> str:
    """Return the device name inside an engine's process.

    On a cluster, Ray selects the visible devices, so the name has no index. "auto" is "cuda" if the recipe requests
    GPUs for the engine, else this machine's device type.
    """
    cluster = find_cluster(run)
    if cluster is None:
        return device
    if device != "auto":
        return device.partition(":")[0]
    return "cuda" if cluster.gpus_for("engine") else pick_device(device).type
