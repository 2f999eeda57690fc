"""MARFT's own engine in subprocesses, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.messages import EngineInit
from marft.inference.subprocess_engine.per_backbone import open_per_backbone
from marft.inference.subprocess_engine.placement import engine_device, make_engine_launcher
from marft.inference.subprocess_engine.python_environment import local_server_command
from marft.models.policy_registry import PolicyRegistry

if TYPE_CHECKING:
    from marft.agents.engine import Engine
    from marft.config.run import RunSettings
    from marft.inference.caller_thread import CallerThreadExecutor


class ProcessSettings(Protocol):
    """Settings for MARFT's own engine in a subprocess."""

    @property
    def max_batch_size(self) -> int: ...
    @property
    def prefix_cache_mb(self) -> int: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...


def open_process(
    settings: ProcessSettings,
    run: RunSettings,
    models: PolicyRegistry,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
) -> Engine:
    """Start a process for each backbone that the policies use.

    Raises:
        RunError: a process does not start.
    """

    device = settings.device or run.device

    def make_engine(names: Sequence[str], own_policies: dict[str, SubprocessPolicy]) -> SubprocessEngine:
        return SubprocessEngine(
            f"the engine's process ({', '.join(names)})",
            local_server_command,
            _init_message(settings, run, models, names),
            own_policies,
            seed=run.seed,
            timeout=settings.timeout_seconds,
            starter=make_engine_launcher(run, device),
        )

    return open_per_backbone(models, policies, thread, make_engine)


def _init_message(
    settings: ProcessSettings, run: RunSettings, models: PolicyRegistry, names: Sequence[str]
) -> EngineInit:
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
        },
    )
