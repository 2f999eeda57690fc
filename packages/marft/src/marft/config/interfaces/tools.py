"""Tools: providers named under ``[tools]``, and their connected sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from marft.common.types import Task, Tool
from marft.config.interfaces.environment import Session
from marft.config.plugins import Plugin


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


class ToolProvider(Plugin, ABC, kind="tools", label="a source of tools"):
    """Base class for tables under ``[tools]``, which connect to a source of tools."""

    @abstractmethod
    def connect(self) -> ToolSource:
        """Return the connected tool source.

        Raises:
            ValueError: the source is not available.
        """
