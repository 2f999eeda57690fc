"""Memories for tests: every system, entries of all kinds, and a clock that is wound by hand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from marft.agents.memories.store import MemoryStore, open_store
from marft.common.packages import bundled_plugins
from marft.config.interfaces.memory import KINDS, Entry
from marft.config.plugins import find_plugin

T = TypeVar("T")
SYSTEMS = sorted(bundled_plugins("memories"))
CONSTRUCTIONS = ("eager", "batched", "lazy")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def opened(name: str, **keys: Any) -> MemoryStore:
    return open_store(part(name, **keys))


def part(name: str, **keys: Any) -> Any:
    return find_plugin("memories", name)(**keys)


def tokens(text: str) -> int:
    """Words and marks, counted slowly: one character after the other."""
    count, inside = 0, False
    for character in text:
        word = re.match(r"\w", character) is not None
        count += (word and not inside) or (not word and not character.isspace())
        inside = word
    return count


class Clock:
    """Nanoseconds that go by as they are asked for: each call 1,000 more than the last."""

    def __init__(self) -> None:
        self.now = self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        self.now += 1000 * self.calls
        return self.now


def facts(numbers: Sequence[int]) -> list[Entry]:
    """Facts that share no key and no number."""
    return [Entry(f"Person{n}x lives at place{n}y.", f"person{n}x") for n in numbers]


WORDS = st.sampled_from(["ann", "bea", "cat", "red", "lives", "in", "rome", "é", "\ud83d", "x" * 50, "drop 1", "2: b"])
TEXTS = st.one_of(st.lists(WORDS, max_size=6).map(" ".join), st.text(max_size=40))
KEYS = st.sampled_from(["", "ann", "ANN ", "bea", "k" * 300, "\ud800"])
ENTRIES = st.builds(Entry, TEXTS, KEYS, st.sampled_from(KINDS))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(ENTRIES, max_size=4)),
        st.tuples(st.just("read"), TEXTS, st.integers(-1, 30)),
        st.tuples(st.just("forget"), KEYS),
    ),
    max_size=12,
)


async def follow(store: MemoryStore, calls: Sequence[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Make the calls → what was read."""
    found = []
    for name, *arguments in calls:
        done = await getattr(store, name)(*arguments)
        if name == "read":
            found.append(done.texts)
    return found
