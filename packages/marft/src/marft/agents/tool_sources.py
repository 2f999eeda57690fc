"""Where tools come from, as the game sees it, and how an agent may use them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.agents.environment import Session
from marft.common.types import Task, Tool


class ToolSession(Protocol):
    """The tools of one source in one episode. It lives on a thread of its own: a tool may block."""

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Use a tool → what the agent is shown. What is raised is shown to the agent as an error."""
        ...

    async def end(self) -> None:
        """The episode is over."""
        ...


class ToolSource(ABC):
    """Where tools come from: functions, a server, a sandbox. One for the whole run."""

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """What agents are told of them."""

    @property
    def stateful(self) -> bool:
        """Whether what a call does depends on the calls before it: then an episode that is played again makes them
        all once more."""
        return True

    @property
    def at_once(self) -> int:
        """How many calls may be under way, over all episodes."""
        return 64

    @property
    def longest(self) -> float:
        """Seconds after which a call ends by itself; 0 where it does not."""
        return 0.0

    @abstractmethod
    def open(self, task: Task, seed: int) -> ToolSession:
        """The tools as one episode uses them."""

    def joined(self, session: Session) -> ToolSession | None:  # noqa: ARG002
        """The tools that an environment's own session brings, which live and end with it; None for all others."""
        return None

    def close(self) -> None:
        """The run is over."""
        return


class StatelessSource(ToolSource):
    """Tools of which every call stands alone."""

    @property
    def stateful(self) -> bool:
        """Never: every call stands alone."""
        return False

    def open(self, task: Task, seed: int) -> ToolSession:  # noqa: ARG002
        """Itself: there is nothing to open."""
        return self

    @abstractmethod
    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Make one call → what the agent is shown."""

    async def end(self) -> None:
        """Nothing was opened."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an agent may use its tools.

    Args:
        sources: where each tool comes from, by the tool's name.
        rounds: how often in one action it may call tools and go on.
        calls: at most in one turn.
        seconds: for one call.
        output_tokens: of one answer that the agent reads; more is cut.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 8
    calls: int = 16
    seconds: float = 30.0
    output_tokens: int = 512
