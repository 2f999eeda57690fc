"""Opponent pools with past versions of a policy: policies to load, and recipe checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from marft.config.models import PolicySettings
from marft.config.settings import did_you_mean

if TYPE_CHECKING:
    from marft.config.run import RunSettings

VERSION_SEPARATOR = "@"  # separator in the names of later versions; invalid in recipe names


def slot_names(name: str, size: int) -> tuple[str, ...]:
    """Return the pool's policies, one per version; the first is permanently untuned and has the pool's name.

    >>> slot_names("rival", 3)
    ('rival', 'rival@1', 'rival@2')
    """
    return (name, *(f"{name}{VERSION_SEPARATOR}{number}" for number in range(1, size)))


def is_later_version(policy: str) -> bool:
    """Return True for a pool version that changes during the run."""
    return VERSION_SEPARATOR in policy


def pool_members(policies: Mapping[str, PolicySettings], name: str) -> list[tuple[str, PolicySettings]]:
    """Return the policies to load for a recipe's policy, with their settings.

    For an ordinary policy that is the policy itself. For a pool it is one adapter per version, with the adapter
    settings of the trained policy.
    """
    settings = policies[name]
    if settings.pool is None or settings.pool.policy not in policies:
        return [(name, settings)]
    learner = policies[settings.pool.policy]
    version = settings.model_copy(update={"lora": learner.lora, "adapter": learner.adapter})
    return [(slot, version) for slot in slot_names(name, settings.pool.size)]


def opponent_pools(run: RunSettings) -> dict[str, str]:
    """Return the recipe's opponent pools, each with its trained policy."""
    return {name: policy.pool.policy for name, policy in run.policies.items() if policy.pool is not None}


def pool_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with a recipe's opponent pools."""
    pools = opponent_pools(run)
    for name, source in pools.items():
        yield from _single_pool_problems(run, name, source)
    opponent_policies = {agent.policy for agent in run.agents if agent.role in run.environment.opponent_roles}
    for name in pools:
        if name not in opponent_policies:
            yield (
                f"policies.{name}.pool: none of its agents is an opponent, so nobody would play against its versions; "
                "set environment.opponent = 'pool' and give it to an agent of another side than the first"
            )
    if len(pools) > 1:
        yield f"policies: {', '.join(pools)} are pools, and a run has one; remove the others"
    if getattr(run.environment, "opponent", "") == "pool" and not pools:
        yield (
            "environment.opponent: 'pool' needs past versions to play against; give the opponent's policy train = "
            "'frozen' and pool = { policy = 'NAME' }, with the name of the policy in training"
        )
    if pools:
        yield from _incompatible_settings(run)


def _single_pool_problems(run: RunSettings, name: str, source: str) -> Iterable[str]:
    policy, learner = run.policies[name], run.policies.get(source)
    if learner is None:
        yield f"policies.{name}.pool.policy: no policy is called {source!r}{did_you_mean(source, run.policies)}"
        return
    if policy.train != "frozen":
        yield f"policies.{name}.pool: past versions do not learn; set train = 'frozen'"
    if learner.train != "lora":
        yield (
            f"policies.{name}.pool.policy: {source!r} is not trained as an adapter (train = {learner.train!r}), and "
            "only adapters are small enough to keep several; set train = 'lora' there"
        )
    if policy.model != learner.model:
        yield (
            f"policies.{name}.pool: its versions are adapters on model {learner.model!r}, and it names "
            f"{policy.model!r}; name that of {source!r}"
        )
    if policy.adapter:
        yield f"policies.{name}.adapter: a pool begins with what {source!r} begins with; remove it"


def _incompatible_settings(run: RunSettings) -> Iterable[str]:
    """Yield settings incompatible with an opponent pool."""
    if run.rollout.max_policy_lag or run.rollout.reuse > 1:
        yield (
            "rollout: which versions are in a pool is settled between steps, and nothing may be played ahead of them "
            "or learned from twice; set max_policy_lag = 0 and reuse = 1"
        )
    if run.engine.separate_weights or run.training.ranks > 1:
        yield (
            "policies: versions of a pool are copied in the memory of one process; use engine.kind = 'local' and "
            "training.ranks = 1"
        )
    if run.algorithm.credit.fork_plan is not None:
        yield (
            f"algorithm.credit: {run.algorithm.credit.name!r} plays episodes again, and does not know which version of "
            "a pool they were played against; use another credit"
        )
