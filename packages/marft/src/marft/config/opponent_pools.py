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
