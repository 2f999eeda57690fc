"""Notes memory: the agent adds, changes and drops numbered notes itself, within a size limit."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from marft.agents.memories.buffered import ENTRY_BYTES, utf8_size
from marft.agents.memories.selection import Keys, NumberedText, has_source, merge_keys, select_fitting, word_set
from marft.config.interfaces.memory import Entry, ForgetResult, MemorySystem, ReadResult, TokenCounter, Work

_CHANGE_LINE = re.compile(r"^(\d{1,6})\s*[:.)]\s*(.+)$")
_DROP_LINE = re.compile(r"^drop\s+(\d{1,6})\s*\.?$", re.IGNORECASE)
_EMPTY_LINE = re.compile(r"^nothing\.?$", re.IGNORECASE)
FULL_MESSAGE = "The notes are full: the rest was cut."


class NoteList:
    """Numbered notes with at most ``budget`` characters together, including line breaks between them.

    Each written line is a new note. ``2: words`` replaces note 2, ``drop 2`` removes it, and ``nothing`` is
    ignored. Text beyond the budget is cut: the end of the note that exceeds it, and later notes. A note keeps the
    keys of all writes that contributed to it.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.notes, self.written_characters = budget, list[str](), 0
        self.keys = list[Keys]()  # keys of each note
        self._characters = 0  # characters of all notes, without the line breaks between them

    @property
    def num_characters(self) -> int:
        """Number of characters of all notes, with the line breaks between them."""
        return self._characters + max(len(self.notes) - 1, 0)

    def write(self, text: str, key: str = "") -> str:
        """Apply the edits in a text, and return messages about edits that failed, or ""."""
        self.written_characters += len(text)
        before = list(self.notes)  # numbers refer to the notes before the text
        dropped, problems = set[int](), list[str]()
        for line in text.splitlines():
            words = " ".join(line.split())
            drops, changes = _DROP_LINE.match(words), _CHANGE_LINE.match(words)
            if not words or _EMPTY_LINE.match(words):
                continue
            if drops or changes:
                number = int((drops or changes)[1])  # type: ignore[index]  # one of them matched
                if not 1 <= number <= len(before):
                    problems.append(f"There is no note {number}.")
                    continue
                if drops:
                    dropped.add(number - 1)
                elif changes:
                    problems += self._put(number - 1, changes[2], key)
                continue
            problems += self._put(len(self.notes), words.removeprefix("- "), key)
        self._drop(dropped)
        assert self.num_characters <= self.budget
        return " ".join(dict.fromkeys(problems))

    def forget(self, key: str) -> int:
        """Remove all notes that a key contributed to, and return their number."""
        places = {place for place, keys in enumerate(self.keys) if has_source(keys, key)}
        self._drop(places)
        return len(places)

    def drop_last(self) -> None:
        """Remove the newest note."""
        self._drop([len(self.notes) - 1])

    def _drop(self, places: Container[int]) -> None:
        remaining = [place for place in range(len(self.notes)) if place not in places]
        self.notes, self.keys = [self.notes[place] for place in remaining], [self.keys[place] for place in remaining]
        self._characters = sum(map(len, self.notes))

    def _put(self, place: int, note: str, key: str) -> list[str]:
        """Store a note up to the free space, and return a message about cut text."""
        before = self.notes[place : place + 1]
        line_breaks = len(self.notes) - len(before)  # one line break for each
        letters = self._characters - sum(map(len, before))
        shortened = note[: max(self.budget - letters - line_breaks, 0)].rstrip()
        if shortened:
            self.keys[place : place + 1] = [merge_keys([frozenset([key]), *self.keys[place : place + 1]])]
            self.notes[place : place + 1] = [shortened]
            self._characters = letters + len(shortened)
        return [] if shortened == note else [FULL_MESSAGE]

    def format_numbered(self) -> str:
        """Return the notes with their numbers, one per line."""
        return "\n".join(f"{number}: {note}" for number, note in enumerate(self.notes, 1))


def parse_notes(text: str) -> list[str]:
    """Return the notes in a text, one per line of the text.

    >>> parse_notes("- Ann likes rice.\\nnothing")
    ['Ann likes rice.']
    """
    lines = (" ".join(line.split()).removeprefix("- ") for line in text.splitlines())
    return [line for line in lines if line and not _EMPTY_LINE.match(line)]


class Learned(MemorySystem):
    """Notes within a size limit, for an agent learning to take useful notes. Each written line is a note. ``2:
    words`` replaces note 2, and ``drop 2`` removes it. No note is evicted automatically: text beyond the limit is
    cut, and the writer gets a message. An empty query shows the notes with numbers. Any other query ranks notes by
    the number of shared words.
    """

    stores_edits: ClassVar[bool] = True

    max_chars: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=800, description="maximum characters of the notes together"
    )

    def create_memory(self, count: TokenCounter) -> LearnedMemory:
        """Return an empty memory."""
        return LearnedMemory(NoteList(self.max_chars), count, self.entry_bytes)


class LearnedMemory:
    """Memory interface for a notebook."""

    def __init__(self, note_list: NoteList, count: TokenCounter, capacity: int) -> None:
        self.note_list, self.count, self.capacity = note_list, count, capacity

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        texts = (*self.note_list.notes, *(key for keys in self.note_list.keys for key in keys))
        return sum(map(utf8_size, texts)) + ENTRY_BYTES * len(self.note_list.notes)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Apply the edits in each entry."""
        work = Work()
        for entry in entries:
            problem = self.note_list.write(entry.text, entry.key)
            while self.size_bytes > self.capacity:
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
