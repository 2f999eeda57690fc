"""Notes memory: the agent adds, changes and drops notes itself."""

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
    """Notes within a size limit, for an agent learning to take useful notes. Each written line is a note. ``2:
    words`` replaces note 2, and ``drop 2`` removes it. No note is evicted automatically: text beyond the limit is
    cut, and the writer gets a message. An empty query shows the notes with numbers. Any other query ranks notes by
    the number of shared words.
    """

    edits: ClassVar[bool] = True

    characters: Annotated[int, Field(ge=1, le=2**20)] = 800  # maximum characters of all notes together

    def begin(self, count: Counter) -> LearnedMemory:
        """Return an empty memory."""
        return LearnedMemory(Notebook(self.characters), count, self.room)


class LearnedMemory:
    """Memory interface for a notebook."""

    def __init__(self, notebook: Notebook, count: Counter, capacity: int) -> None:
        self.notebook, self.count, self.capacity = notebook, count, capacity

    @property
    def size(self) -> int:
        """Size in bytes."""
        texts = (*self.notebook.notes, *(key for keys in self.notebook.keys for key in keys))
        return sum(map(bytes_of, texts)) + ENTRY_BYTES * len(self.notebook.notes)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Apply the edits in each entry."""
        work = Work()
        for entry in entries:
            problem = self.notebook.write(entry.text, entry.key)
            while self.size > self.capacity:
                self.notebook.drop_last()
                problem = FULL
            work += Work(self.count(entry.text), bytes_of(entry.text), problem)
        return work

    async def read(self, query: str, budget: int) -> Recall:
        """Return notes within a token budget."""
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
        """Remove all notes derived from a key's entries."""
        return Forgotten(self.notebook.forget(key))
