"""The seam of memory systems: write, read, forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Kind = Literal["factual", "experiential", "working"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Counter = Callable[[str], int]  # the tokens of a text


@dataclass(frozen=True, slots=True)
class Entry:
    """What is written.

    ``Entry("Ann's cat is red.", key="ann cat")`` takes the place of what was written under that key before;
    ``Entry("Ann bought a hat, Day 2.", key="ann hat", kind="experiential")`` happened, and takes nothing's place;
    ``Entry("Next: ask Bea.", kind="working")`` is read first, and goes when newer ones come.

    Args:
        key: what it is about, and what it is forgotten by; "" is a key like any other, but replaces nothing.
    """

    text: str
    key: str = ""
    kind: Kind = "factual"

    def replaces(self, other: Entry) -> bool:
        """Whether it makes an earlier one old: both say what is so, or what is being done, of the same key."""
        return bool(self.key) and self.key == other.key and self.kind == other.kind != "experiential"


@dataclass(frozen=True, slots=True)
class Work:
    """What a call took.

    Args:
        tokens: that were taken in, said again in a shorter form, or given.
        bytes: that were put down, or looked at.
        said: what could not be done, in words for who wrote.
    """

    tokens: int = 0
    bytes: int = 0
    said: str = ""

    def __add__(self, other: Work) -> Work:
        said = " ".join(filter(None, (self.said, other.said)))
        return Work(self.tokens + other.tokens, self.bytes + other.bytes, said)


@dataclass(frozen=True, slots=True)
class Recall:
    """What was read: texts that have at most ``budget`` tokens together, older ones first."""

    texts: tuple[str, ...]
    work: Work = Work()

    @property
    def text(self) -> str:
        """One below the other."""
        return "\n".join(self.texts)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many things went: entries, and what was made of several."""

    count: int
    work: Work = Work()


class System(Protocol):
    """What a memory system's part (:class:`marft.config.parts.MemoryPart`) has beside its keys."""

    def begin(self, count: Counter) -> Memory:
        """An empty memory."""
        ...


class Memory(Protocol):
    """One memory. Its entries come with texts that files take, and keys of at most 200 characters in lower case
    (:mod:`marft.agents.memories.store` sees to that), and no call is made before the last one is over."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        ...

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Take entries in, in their order."""
        ...

    async def read(self, query: str, budget: int) -> Recall:
        """What helps with a question, in at most so many tokens; "" asks for whatever there is, the newest first."""
        ...

    async def forget(self, key: str) -> Forgotten:
        """Forget all that was written under a key, and what was made of it: nothing that is read later holds it."""
        ...
