"""Memory system interface: write, read, forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Kind = Literal["factual", "experiential", "working"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TokenCounter = Callable[[str], int]  # returns the number of tokens in a text


@dataclass(frozen=True, slots=True)
class Entry:
    """Memory entry.

    ``Entry("Ann's cat is red.", key="ann cat")`` replaces an earlier entry with this key; ``Entry("Ann bought a
    hat, Day 2.", key="ann hat", kind="experiential")`` is an event and replaces nothing; ``Entry("Next: ask Bea.",
    kind="working")`` is read first and is dropped when newer working entries come.

    Args:
        key: subject of the entry, and the key for forgetting it. "" is a key like any other, but replaces nothing.
    """

    text: str
    key: str = ""
    kind: Kind = "factual"

    def replaces(self, other: Entry) -> bool:
        """Return true if this entry replaces an earlier one: same nonempty key and same kind, factual or working."""
        return bool(self.key) and self.key == other.key and self.kind == other.kind != "experiential"


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one call.

    Args:
        tokens: tokens written, summarized or returned.
        bytes: bytes stored or searched.
        message: message for the writer about text that could not be stored.
    """

    tokens: int = 0
    bytes: int = 0
    message: str = ""

    def __add__(self, other: Work) -> Work:
        message = " ".join(filter(None, (self.message, other.message)))
        return Work(self.tokens + other.tokens, self.bytes + other.bytes, message)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Result of a read: texts with at most ``budget`` tokens together, older texts first."""

    texts: tuple[str, ...]
    work: Work = Work()

    @property
    def text(self) -> str:
        """All texts, one per line."""
        return "\n".join(self.texts)


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """Number of removed entries and removed derived texts."""

    count: int
    work: Work = Work()


class MemorySystem(Protocol):
    """Methods of a memory system's settings (:class:`marft.config.plugin_types.MemoryPart`), besides its keys."""

    def begin(self, count: TokenCounter) -> Memory:
        """Return an empty memory."""
        ...


class Memory(Protocol):
    """Memory.

    Calls do not overlap. :mod:`marft.agents.memories.store` normalizes the entries: texts can be stored in files,
    and keys are lower case with at most 200 characters.
    """

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries in order."""
        ...

    async def read(self, query: str, budget: int) -> ReadResult:
        """Return texts relevant to a query, within ``budget`` tokens; an empty query returns the newest entries."""
        ...

    async def forget(self, key: str) -> ForgetResult:
        """Remove all entries with a key and all texts derived from them; no later read returns their content."""
        ...
