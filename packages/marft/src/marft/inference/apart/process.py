"""MARFT's own engine in subprocesses, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from marft.inference.apart.bases import open_each
from marft.inference.apart.engine import EngineApart, PolicyApart
from marft.inference.apart.environment import own_command
from marft.inference.apart.places import device_there, engine_starter
from marft.inference.apart.words import Open
from marft.models.pool import Models

if TYPE_CHECKING:
    from marft.agents.engine import Engine
    from marft.config.run import RunSettings
    from marft.inference.caller_thread import CallerThreadExecutor


class ProcessSettings(Protocol):
    """Settings for MARFT's own engine in a subprocess."""

    @property
    def max_rows(self) -> int: ...
    @property
    def prefix_cache_mb(self) -> int: ...
    @property
    def patience_seconds(self) -> float: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...


def open_process(
    settings: ProcessSettings, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor
) -> Engine:
    """Start a process for each backbone that the policies use.

    Raises:
        RunError: a process does not start.
    """

    device = settings.device or run.device

    def make(names: Sequence[str], mine: dict[str, PolicyApart]) -> EngineApart:
        return EngineApart(
            f"the engine's process ({', '.join(names)})", own_command, _opened(settings, run, models, names), mine,
            seed=run.seed, patience=settings.patience_seconds, starter=engine_starter(run, device),
        )  # fmt: skip

    return open_each(models, policies, thread, make)


def _opened(settings: ProcessSettings, run: RunSettings, models: Models, names: Sequence[str]) -> Open:
    some = [models.policies[name] for name in names]
    base = run.models[some[0].base]
    return Open(
        base.path,
        "float32" if some[0].settings.train == "full" and not some[0].backbone.half else base.dtype,
        max(policy.context for policy in some),
        settings.max_rows,
        sum(policy.adapter is not None for policy in some),
        max((policy.lora.rank for policy in some if policy.adapter is not None), default=0),
        run.seed,
        {
            "base": base.model_dump(mode="json", exclude_none=True),
            "device": device_there(run, settings.device or run.device),
            "threads": settings.threads or run.threads,
            "prefix_bytes": settings.prefix_cache_mb * 2**20,
        },
    )
