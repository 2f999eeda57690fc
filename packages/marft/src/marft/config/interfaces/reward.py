"""Reward terms: named parts of a reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.common.error_origin import source_location
from marft.common.types import Episode
from marft.config.endpoint import LimitsFactory
from marft.config.plugin_kinds import sync_or_async
from marft.config.plugins import Plugin
from marft.config.settings import Bounded, NotTiny


@dataclass(frozen=True, slots=True)
class TermReward:
    """Reward from one term for one environment step: for the team, and by role for agents."""

    team: float = 0.0
    agents: Mapping[str, float] = field(default_factory=dict)


class RewardTerm(Plugin, ABC, kind="rewards", label="a reward term"):
    """Base class for reward terms. A term's reward is clipped, then weighted.

    ``score`` runs on a thread with the same timeout as a call to the environment. A term with ``own_timeout`` runs on
    the event loop instead, and has to enforce a timeout itself.
    """

    own_timeout: ClassVar[bool] = False
    same_for_team: ClassVar[bool] = False  # the reward is the same for every agent, on both sides of a game
    weight: Annotated[Bounded, NotTiny] = Field(
        default=1.0, description="factor on the reward, after the clip; negative: a penalty"
    )
    clip: Annotated[tuple[float, float] | None, Strict(False)] = Field(
        default=None, description="lowest and highest reward; default: no clip"
    )
    shaping_only: bool = Field(
        default=False, description="guide learning without grading; algorithm.dynamic_sampling ignores the term"
    )

    @field_validator("weight")
    @classmethod
    def _check_weight(cls, weight: float) -> float:
        if weight == 0:
            raise PydanticCustomError("weight", "a term of weight 0 does nothing; remove the term")
        return weight

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise PydanticCustomError("clip", "must be the lowest and then the highest value, such as [-1.0, 1.0]")
        return clip

    @abstractmethod
    @sync_or_async
    def score(self, episode: Episode) -> Sequence[TermReward] | Awaitable[Sequence[TermReward]]:
        """Return a reward for each environment step. May be a coroutine."""

    def source_location(self) -> str:
        """Return the source location for messages, for example ``rewards.py:12``."""
        return source_location(type(self).score)

    @property
    def label(self) -> str:
        """Suffix to distinguish the term from others with the same kind; "" without one."""
        return ""

    def open(self, answer_roles: Sequence[str]) -> RewardTerm:
        """Return the term with open connections. The caller has to close the term.

        Args:
            answer_roles: roles of the agents that give the team's answer.

        Raises:
            ValueError: a requirement is missing.
        """
        del answer_roles
        return self

    def share_limits(self, name: str, limits: LimitsFactory) -> None:
        """Share the endpoint's request limits with terms in other processes.

        Args:
            name: unique name of this term.
        """
        del name, limits

    def counts(self) -> Mapping[str, float]:
        """Return scoring totals since the term was opened, by metric name."""
        return {}

    def close(self) -> None:
        """Close the connections."""

    def apply_weight(self, value: float) -> float:
        """Return a reward after clip and weight."""
        low, high = self.clip or (value, value)
        return self.weight * min(max(value, low), high)
