"""Types of filters: candidates and rejections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.common.types import Episode, Task

Refused = Mapping[int, str]  # reasons by index of rejected candidates; one sentence per kind of reason


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Episode to filter.

    Args:
        episode: episode.
        read: prompt of each action, as read by the agent's model, by action id.
    """

    episode: Episode
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Context of filters: facts about the learner's recipe.

    Args:
        held_out: tasks of the validation and test splits.
        told: task-independent prompt of each role.
    """

    held_out: Sequence[Task] = ()
    told: Mapping[str, str] = field(default_factory=dict)


class Filter(Protocol):
    """Interface of a filter (:class:`marft.config.parts.FilterPart`)."""

    @property
    def name(self) -> str: ...

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:
        """Return the rejected candidates with reasons, as a pure function."""
        ...
