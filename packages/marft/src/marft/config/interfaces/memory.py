"""Memory systems: write, read, forget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, get_args

from pydantic import Field

from marft.config.plugins import Plugin
from marft.config.settings import SmallCount

MIN_CAPACITY = 16_384  # minimum capacity of a memory in bytes
MAX_TEXT_DIVISOR = 16  # divisor: one text may take at most this fraction of a memory
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


class Memory(Protocol):
    """Memory.

    Calls do not overlap. :mod:`marft.agents.memories.store` normalizes the entries: texts can be stored in files,
    and keys are lower case with at most 200 characters.
    """

    @property
    def size_bytes(self) -> int:
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


class MemorySystem(Plugin, ABC, kind="memories", label="a memory system"):
    """Base class for memory systems, which create memories."""

    stores_edits: ClassVar[bool] = False  # written texts are line-by-line edits of the memory's content

    construction: Literal["eager", "batched", "lazy"] = Field(
        default="eager", description="time of adding new entries: immediately, in batches, or before the next read"
    )
    batch_size: SmallCount = Field(default=8, description='entries per batch for construction = "batched"')
    max_bytes: Annotated[int, Field(ge=MIN_CAPACITY, le=2**30)] = Field(
        default=262_144, description="maximum size in bytes, pending entries included; the oldest entries go first"
    )
    max_working_entries: Annotated[int, Field(ge=1, le=100)] = Field(
        default=4, description='maximum entries of kind "working"; the newest stay'
    )

    @abstractmethod
    def create_memory(self, count: TokenCounter) -> Memory:
        """Return an empty memory of at most ``entry_bytes`` bytes.

        Args:
            count: returns the number of tokens in a text.
        """

    @property
    def entry_bytes(self) -> int:
        """Bytes for built-in entries; the rest of the capacity is for pending entries."""
        return self.max_bytes if self.construction == "eager" else self.max_bytes - self.pending_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes for pending entries; more pending entries are added early."""
        return self.max_bytes // 4

    @property
    def max_text_bytes(self) -> int:
        """Maximum text length per entry in bytes; longer texts are truncated."""
        return self.max_bytes // MAX_TEXT_DIVISOR
