"""Subprocess engines, separate for each set of base weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from marft.agents.engine import Engine
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.router import Router
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.replicas import ReplicatedEngine
from marft.models.policy_registry import PolicyRegistry


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
