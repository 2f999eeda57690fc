"""Tool sources and the limits on an agent's tool use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.agents.environment import Session
from marft.common.types import Task, Tool


class ToolSession(Protocol):
    """Tool session for one source in one episode, on its own thread (tools may block)."""

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a tool and return its output; an exception becomes an error message for the agent."""
        ...

    async def end(self) -> None:
        """Close the session at the end of the episode."""
        ...


class ToolSource(ABC):
    """Tool source: functions, a server or a sandbox. A run has one instance."""

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """Tool descriptions for agents."""

    @property
    def stateful(self) -> bool:
        """True if a call depends on earlier calls; a replayed episode then repeats all calls."""
        return True

    @property
    def max_concurrency(self) -> int:
        """Maximum concurrent calls over all episodes."""
        return 64

    @property
    def max_seconds(self) -> float:
        """Seconds after which a call ends by itself; 0 without such a limit."""
        return 0.0

    @abstractmethod
    def open(self, task: Task, seed: int) -> ToolSession:
        """Open a session for one episode."""

    def bind_session(self, session: Session) -> ToolSession | None:  # noqa: ARG002
        """Return a session for tools in the environment's own session, or None for other sources.

        The environment's session owns these tools and closes them.
        """
        return None

    def close(self) -> None:
        """Release the source at the end of the run."""
        return


class StatelessSource(ToolSource):
    """Tool source with independent calls."""

    @property
    def stateful(self) -> bool:
        """Always false: calls are independent."""
        return False

    def open(self, task: Task, seed: int) -> ToolSession:  # noqa: ARG002
        """Return the source itself; it needs no session."""
        return self

    @abstractmethod
    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Execute one call and return its output."""

    async def end(self) -> None:
        """Do nothing: no session was opened."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Limits on an agent's tool use.

    Args:
        sources: source name by tool name.
        rounds: maximum tool rounds in one action.
        calls: maximum calls in one turn.
        seconds: timeout of one call.
        output_tokens: maximum tokens per output; longer outputs are truncated.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 8
    calls: int = 16
    seconds: float = 30.0
    output_tokens: int = 512
