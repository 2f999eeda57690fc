"""vLLM's processes: one for each set of base weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from marft.cluster.opening import open_starter
from marft.engines.apart.engine import EngineApart, PolicyApart
from marft.engines.apart.environment import command, python_of
from marft.engines.apart.words import Open
from marft.engines.router import Router
from marft.models.paths import resolve_path
from marft.models.pool import Models

if TYPE_CHECKING:
    from marft.config.run import RunSettings
    from marft.engines.caller_thread import CallerThreadExecutor
    from marft.game.engine import Engine

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


class VllmSettings(Protocol):
    """What a recipe says of it."""

    @property
    def python(self) -> str: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def patience_seconds(self) -> float: ...
    @property
    def options(self) -> Mapping[str, object]: ...


def open_vllm(
    settings: VllmSettings, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor
) -> Engine:
    """Start vLLM for each of the backbones that policies are on.

    Raises:
        ValueError: there is no such Python, or it has no vLLM.
        RunError: it does not come up.
    """
    if run.cluster is None:
        python_of("vllm", settings.python)  # before anything is loaded; elsewhere, it is looked for there
    backbones: dict[int, list[str]] = {}
    for name in policies:
        backbones.setdefault(id(models.policies[name].backbone), []).append(name)
    engines: dict[str, Engine] = {}
    try:
        for names in backbones.values():
            engine = EngineApart(
                f"vllm ({', '.join(names)})",
                partial(vllm_command, settings.python),
                _opened(settings, run, models, names),
                {name: _policy(models, name) for name in names},
                seed=run.seed,
                patience=settings.patience_seconds,
                starter=open_starter(run, "engine", 1),
            )
            engines.update(dict.fromkeys(names, engine))
            thread.wait_for(engine.start())
    except BaseException:
        thread.wait_for(Router(engines).close())
        raise
    return Router(engines)


def vllm_command(python: str, descriptor: int) -> Sequence[str]:
    """Our program on the Python that vLLM is in, on the machine that asks.

    Raises:
        ValueError: there is no such Python, or it has no vLLM.
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
        str(next(some[0].backbone.model.parameters()).dtype).removeprefix("torch."),
        max(policy.context for policy in some),
        settings.max_rows,
        len(ranks),
        room[0],
        run.seed % 2**31,
        dict(settings.options),
    )


def _policy(models: Models, name: str) -> PolicyApart:
    policy = models.policies[name]
    whole = policy.settings.train == "full"
    save = partial(models.save_policy, name) if whole or policy.adapter else None
    return PolicyApart(policy.tokenizer, policy.stop_ids, save, whole)
