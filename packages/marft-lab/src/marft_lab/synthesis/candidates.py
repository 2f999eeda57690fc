"""Types of filters: candidates and rejections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marft.common.types import Episode, Task
from marft.config.plugins import Plugin

Rejections = Mapping[int, str]  # reasons by index of rejected candidates; one sentence per kind of reason


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Episode to filter.

    Args:
        episode: episode.
        prompts: prompt of each action, as read by the agent's model, by action id.
    """

    episode: Episode
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FilterContext:
    """Context of filters: facts about the learner's recipe.

    Args:
        held_out: tasks of the validation and test splits.
        role_prompts: task-independent prompt of each role.
    """

    held_out: Sequence[Task] = ()
    role_prompts: Mapping[str, str] = field(default_factory=dict)


class Filter(Plugin, ABC, kind="filters", label="a filter"):
    """Base class for filters on a teacher's episodes before imitation."""

    @abstractmethod
    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:
        """Return the rejected candidates with reasons.

        A pure function of the episodes and of the known recipe data.
        """
