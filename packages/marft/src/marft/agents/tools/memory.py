"""Memory as tools: agents remember, recall and forget, and training shapes the content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from marft.agents.memories.store import MemoryStore, open_store
from marft.agents.tools.functions import Function
from marft.common.types import Task, Tool
from marft.config.interfaces.memory import Entry, Kind, MemorySystem
from marft.config.interfaces.tools import ToolProvider, ToolSource
from marft.config.settings import Count

NO_RESULT = "(nothing)"


class MemoryToolSettings(ToolProvider):
    """Tools ``remember(text, key, kind)``, ``recall(question)`` and ``forget(key)`` on a memory. All agents with
    this tool source share one memory per episode.
    """

    store: MemorySystem = Field(
        default={"name": "key_value"}, validate_default=True, description="memory system with its keys"
    )
    budget: Count = Field(default=200, description="maximum tokens (words and punctuation marks) per recall")

    def connect(self) -> MemorySource:
        """Return the tool source for the run."""
        return MemorySource(self.store, self.budget)


@dataclass(frozen=True)
class MemorySource(ToolSource):
    """Tool source with a new memory for every episode."""

    store: Any
    budget: int

    @property
    def tools(self) -> Sequence[Tool]:
        """Descriptions of the three tools."""
        return [Function.from_function(getattr(MemoryTools, name), method=True).tool for name in TOOL_NAMES]

    def open(self, task: Task, seed: int) -> MemorySession:  # noqa: ARG002  starts empty and uses no randomness
        """Open a session with an empty memory."""
        return MemorySession(open_store(self.store), self.budget)


@dataclass(frozen=True)
class MemoryTools:
    """Implementation of the three tools. Agents read the docstrings of its methods as tool descriptions."""

    store: MemoryStore
    budget: int

    async def remember(self, text: str, key: str = "", kind: Kind = "factual") -> str:
        """Remember a text. A fact takes the place of an earlier one with the same key. kind: "factual" for what is so,
        "experiential" for what happened, "working" for what you are doing now."""
        work = await self.store.write([Entry(text, key, kind)])
        return work.message or "Remembered."

    async def recall(self, question: str = "") -> str:
        """Read what was remembered that helps with a question; an empty one reads the newest."""
        return (await self.store.read(question, self.budget)).text or NO_RESULT

    async def forget(self, key: str) -> str:
        """Forget all that was remembered under a key."""
        count = (await self.store.forget(key)).count
        return f"Forgotten: {count}." if count else f"Nothing was remembered under {key!r}."


TOOL_NAMES = ("remember", "recall", "forget")


class MemorySession:
    """Memory tools in one episode."""

    def __init__(self, store: MemoryStore, budget: int) -> None:
        self.store, self._tools = store, MemoryTools(store, budget)

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a tool; an agent reads errors in its arguments."""
        method = getattr(self._tools, tool)
        bound = Function.from_function(getattr(MemoryTools, tool), method=True).bind_arguments(arguments)
        return str(await method(**bound))

    async def end(self) -> None:
        """Do nothing: the memory ends with its episode."""
