"""What filters are given, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.common.types import Episode, Task

Refused = Mapping[int, str]  # places of candidates that are left out, and why: one sentence for all of a kind


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An episode that may be imitated.

    Args:
        read: what the agent of each action was told, as its model read it, by the action's id.
    """

    episode: Episode
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What is known of the recipe that is going to imitate.

    Args:
        held_out: tasks of the validation and the test split.
        told: by role, what the recipe tells an agent whatever the task.
    """

    held_out: Sequence[Task] = ()
    told: Mapping[str, str] = field(default_factory=dict)


class Filter(Protocol):
    """A :class:`marft.config.parts.FilterPart`, as it is called."""

    @property
    def name(self) -> str: ...

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:
        """Which candidates are left out. It is a pure function: the same candidates, the same answer."""
        ...
