"""Notes memory: the agent adds, changes and drops notes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from marft.agents.memories.entry_buffer import ENTRY_BYTES, utf8_size
from marft.agents.memories.interface import Entry, ForgetResult, ReadResult, TokenCounter, Work
from marft.agents.memories.note_list import FULL_MESSAGE, NoteList
from marft.agents.memories.selection import NumberedText, select_fitting, word_set
from marft.config.plugin_types import MemoryPart


class Learned(MemoryPart):
    """Notes within a size limit, for an agent learning to take useful notes. Each written line is a note. ``2:
    words`` replaces note 2, and ``drop 2`` removes it. No note is evicted automatically: text beyond the limit is
    cut, and the writer gets a message. An empty query shows the notes with numbers. Any other query ranks notes by
    the number of shared words.
    """

    stores_edits: ClassVar[bool] = True

    characters: Annotated[int, Field(ge=1, le=2**20)] = 800  # maximum characters of all notes together

    def begin(self, count: TokenCounter) -> LearnedMemory:
        """Return an empty memory."""
        return LearnedMemory(NoteList(self.characters), count, self.entry_bytes)


class LearnedMemory:
    """Memory interface for a notebook."""

    def __init__(self, note_list: NoteList, count: TokenCounter, capacity: int) -> None:
        self.note_list, self.count, self.capacity = note_list, count, capacity

    @property
    def size(self) -> int:
        """Size in bytes."""
        texts = (*self.note_list.notes, *(key for keys in self.note_list.keys for key in keys))
        return sum(map(utf8_size, texts)) + ENTRY_BYTES * len(self.note_list.notes)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Apply the edits in each entry."""
        work = Work()
        for entry in entries:
            problem = self.note_list.write(entry.text, entry.key)
            while self.size > self.capacity:
                self.note_list.drop_last()
                problem = FULL_MESSAGE
            work += Work(self.count(entry.text), utf8_size(entry.text), problem)
        return work

    async def read(self, query: str, budget: int) -> ReadResult:
        """Return notes within a token budget."""
        notes, query_words = self.note_list.notes, word_set(query)
        if query_words:
            shared = [len(query_words & word_set(note)) for note in notes]
            best = sorted(range(len(notes)), key=lambda place: (shared[place], place), reverse=True)
            numbered = [NumberedText(place, notes[place]) for place in best]
        else:
            numbered = [NumberedText(place, f"{place + 1}: {notes[place]}") for place in reversed(range(len(notes)))]
        texts = select_fitting(numbered, budget, self.count)
        return ReadResult(texts, Work(self.count("\n".join(texts)), sum(map(utf8_size, notes))))

    async def forget(self, key: str) -> ForgetResult:
        """Remove all notes derived from a key's entries."""
        return ForgetResult(self.note_list.forget(key))
