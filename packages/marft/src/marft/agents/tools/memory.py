"""A memory as tools: agents remember, recall and forget, and what they write is theirs to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from marft.agents.memories.interface import Entry, Kind
from marft.agents.memories.store import Store, open_store
from marft.agents.tool_sources import ToolSource
from marft.agents.tools.functions import Function
from marft.common.types import Task, Tool
from marft.config.parts import MemoryPlugin
from marft.config.plugins import Plugin
from marft.config.settings import Count

NOTHING = "(nothing)"


class Remembering(Plugin):
    """``remember(text, key, kind)``, ``recall(question)`` and ``forget(key)`` on a memory that all agents with this
    source share, for one episode."""

    store: MemoryPlugin = Field({"name": "key_value"}, validate_default=True)  # the memory system, with its keys
    budget: Count = 200  # tokens (words and marks) that one recall gives, at most

    def connect(self) -> MemorySource:
        """What the run uses."""
        return MemorySource(self.store, self.budget)


@dataclass(frozen=True)
class MemorySource(ToolSource):
    """A new memory for every episode."""

    store: Any
    budget: int

    @property
    def tools(self) -> Sequence[Tool]:
        """Three tools."""
        return [Function.of(getattr(MemoryTools, name), method=True).tool for name in NAMES]

    def open(self, task: Task, seed: int) -> MemorySession:  # noqa: ARG002  it begins empty, and nothing is random
        """An empty memory."""
        return MemorySession(open_store(self.store), self.budget)


@dataclass(frozen=True)
class MemoryTools:
    """What agents are told, and what is done."""

    store: Store
    budget: int

    async def remember(self, text: str, key: str = "", kind: Kind = "factual") -> str:
        """Remember a text. A fact takes the place of an earlier one with the same key. kind: "factual" for what is so,
        "experiential" for what happened, "working" for what you are doing now."""
        work = await self.store.write([Entry(text, key, kind)])
        return work.said or "Remembered."

    async def recall(self, question: str = "") -> str:
        """Read what was remembered that helps with a question; an empty one reads the newest."""
        return (await self.store.read(question, self.budget)).text or NOTHING

    async def forget(self, key: str) -> str:
        """Forget all that was remembered under a key."""
        count = (await self.store.forget(key)).count
        return f"Forgotten: {count}." if count else f"Nothing was remembered under {key!r}."


NAMES = ("remember", "recall", "forget")


class MemorySession:
    """The tools of one episode."""

    def __init__(self, store: Store, budget: int) -> None:
        self.store, self._tools = store, MemoryTools(store, budget)

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Use one; what a call says wrongly is the agent's to read."""
        method = getattr(self._tools, tool)
        bound = Function.of(getattr(MemoryTools, tool), method=True).bind(arguments)
        return str(await method(**bound))

    async def end(self) -> None:
        """Nothing was opened: the memory goes with its episode."""
