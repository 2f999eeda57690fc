"""Update schedules: which policies step, in which order (formulas §7). The unit is the policy: agents that share
weights are one unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.config.plugins import Plugin
from marft.learning.interfaces import Progress, UpdatePhase


class Simultaneous(Plugin):
    """Every policy steps on every minibatch."""

    def plan(self, progress: Progress, policies: Sequence[str]) -> list[UpdatePhase]:  # noqa: ARG002
        return [UpdatePhase(tuple(policies))]


class AgentByAgent(Plugin):
    """One policy at a time; the turn changes every ``interval`` environment steps (the paper's cycling scheme)."""

    interval: Annotated[int, Field(ge=1)] = 256

    def plan(self, progress: Progress, policies: Sequence[str]) -> list[UpdatePhase]:
        turn = progress.environment_steps // self.interval % len(policies)
        return [UpdatePhase((policies[turn],))]
