"""Subprocess engines, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from marft.agents.engine import Engine
from marft.inference.apart.engine import EngineApart, PolicyApart
from marft.inference.apart.replicas import Replicas
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.router import Router
from marft.models.pool import Models


def open_each(
    models: Models,
    policies: Sequence[str],
    thread: CallerThreadExecutor,
    make: Callable[[Sequence[str], dict[str, PolicyApart]], EngineApart | Replicas],
) -> Engine:
    """Start an engine for each backbone that the policies use.

    Args:
        make: builds an engine for the policies on one backbone, given by name.

    Raises:
        RunError: an engine does not start.
    """
    backbones: dict[int, list[str]] = {}
    for name in policies:
        backbones.setdefault(id(models.policies[name].backbone), []).append(name)
    engines: dict[str, Engine] = {}
    try:
        for names in backbones.values():
            engine = make(names, {name: _policy(models, name) for name in names})
            engines.update(dict.fromkeys(names, engine))
            thread.wait_for(engine.start())
    except BaseException:
        thread.wait_for(Router(engines).close())
        raise
    return Router(engines)


def _policy(models: Models, name: str) -> PolicyApart:
    policy = models.policies[name]
    whole = policy.settings.train == "full"
    save = partial(models.save_policy, name) if whole or policy.adapter else None
    return PolicyApart(policy.tokenizer, policy.stop_ids, save, whole)
