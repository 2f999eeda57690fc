"""Notes that an agent keeps: what is written down, changed and dropped is what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from marft.agents.memories.interface import Counter, Entry, Forgotten, Recall, Work
from marft.agents.memories.notebook import FULL, Notebook
from marft.agents.memories.selection import Placed, fitting, words_of
from marft.agents.memories.shelf import ENTRY_BYTES, bytes_of
from marft.config.parts import MemoryPart


class Learned(MemoryPart):
    """Notes under a budget, for an agent that learns what is worth its place: each line that is written is a note,
    ``2: words`` takes the place of note 2, ``drop 2`` takes it out. Nothing falls out by itself: what has no room is
    cut, and the writer told so. An empty question shows the notes by number; another one those that share words with it
    first.
    """

    edits: ClassVar[bool] = True

    characters: Annotated[int, Field(ge=1, le=2**20)] = 800  # of all notes together

    def begin(self, count: Counter) -> LearnedMemory:
        """An empty one."""
        return LearnedMemory(Notebook(self.characters), count, self.room)


class LearnedMemory:
    """A notebook behind the seam."""

    def __init__(self, notebook: Notebook, count: Counter, capacity: int) -> None:
        self.notebook, self.count, self.capacity = notebook, count, capacity

    @property
    def size(self) -> int:
        texts = (*self.notebook.notes, *(key for keys in self.notebook.keys for key in keys))
        return sum(map(bytes_of, texts)) + ENTRY_BYTES * len(self.notebook.notes)

    async def write(self, entries: Sequence[Entry]) -> Work:
        work = Work()
        for entry in entries:
            problem = self.notebook.write(entry.text, entry.key)
            while self.size > self.capacity:
                self.notebook.drop_last()
                problem = FULL
            work += Work(self.count(entry.text), bytes_of(entry.text), problem)
        return work

    async def read(self, query: str, budget: int) -> Recall:
        notes, asked = self.notebook.notes, words_of(query)
        if asked:
            shared = [len(asked & words_of(note)) for note in notes]
            best = sorted(range(len(notes)), key=lambda place: (shared[place], place), reverse=True)
            placed = [Placed(place, notes[place]) for place in best]
        else:
            placed = [Placed(place, f"{place + 1}: {notes[place]}") for place in reversed(range(len(notes)))]
        texts = fitting(placed, budget, self.count)
        return Recall(texts, Work(self.count("\n".join(texts)), sum(map(bytes_of, notes))))

    async def forget(self, key: str) -> Forgotten:
        return Forgotten(self.notebook.forget(key))
