"""Scripts: who plays an environment without a model. One function says what any agent of a team would.

They are demonstrations for small models, players for checks, and a load for measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from marft.common.types import Task, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class Cue:
    """What an agent is asked with.

    ``chat`` is all that it reads: its instructions, what it was shown and told, and what it has said before where it
    remembers that. The task is there too, for moves that would take long to find: a script says nothing that the agent
    could not know.
    """

    task: Task
    role: str
    step: int
    chat: Sequence[Mapping[str, object]]
    random: Random = field(compare=False)
    options: tuple[str, ...] = ()  # that it may choose from
    tools: tuple[Tool, ...] = ()

    @property
    def shown(self) -> str:
        """The last thing that it was told: an observation with the messages of others, or what its tools answered."""
        return str(self.chat[-1]["content"])


@dataclass(frozen=True, slots=True)
class Line:
    """What an agent says, with the tools that it calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class Script(Protocol):
    """What an agent says to a cue; its randomness is the cue's alone."""

    def __call__(self, cue: Cue) -> str | Line: ...
