"""Numbered notes within a size limit, with edits by number."""

from __future__ import annotations

import re
from collections.abc import Container

from marft.agents.memories.keys import Keys, made_of, merged

_CHANGES = re.compile(r"^(\d{1,6})\s*[:.)]\s*(.+)$")
_DROPS = re.compile(r"^drop\s+(\d{1,6})\s*\.?$", re.IGNORECASE)
_NOTHING = re.compile(r"^nothing\.?$", re.IGNORECASE)
FULL = "The notes are full: the rest was cut."


class Notebook:
    """Numbered notes with at most ``budget`` characters together, including line breaks between them.

    Each written line is a new note. ``2: words`` replaces note 2, ``drop 2`` removes it, and ``nothing`` is
    ignored. Text beyond the budget is cut: the end of the note that exceeds it, and later notes. A note keeps the
    keys of all writes that contributed to it.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.notes, self.written = budget, list[str](), 0
        self.keys = list[Keys]()  # keys of each note
        self._letters = 0  # characters of all notes, without the line breaks between them

    @property
    def size(self) -> int:
        """Number of characters."""
        return self._letters + max(len(self.notes) - 1, 0)

    def write(self, text: str, key: str = "") -> str:
        """Apply the edits in a text, and return messages about edits that failed, or ""."""
        self.written += len(text)
        before = list(self.notes)  # numbers refer to the notes before the text
        dropped, problems = set[int](), list[str]()
        for line in text.splitlines():
            words = " ".join(line.split())
            drops, changes = _DROPS.match(words), _CHANGES.match(words)
            if not words or _NOTHING.match(words):
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
        assert self.size <= self.budget
        return " ".join(dict.fromkeys(problems))

    def forget(self, key: str) -> int:
        """Remove all notes that a key contributed to, and return their number."""
        places = {place for place, keys in enumerate(self.keys) if made_of(keys, key)}
        self._drop(places)
        return len(places)

    def drop_last(self) -> None:
        """Remove the newest note."""
        self._drop([len(self.notes) - 1])

    def _drop(self, places: Container[int]) -> None:
        kept = [place for place in range(len(self.notes)) if place not in places]
        self.notes, self.keys = [self.notes[place] for place in kept], [self.keys[place] for place in kept]
        self._letters = sum(map(len, self.notes))

    def _put(self, place: int, note: str, key: str) -> list[str]:
        """Store a note up to the free space, and return a message about cut text."""
        before = self.notes[place : place + 1]
        others = len(self.notes) - len(before)  # one line break for each
        letters = self._letters - sum(map(len, before))
        kept = note[: max(self.budget - letters - others, 0)].rstrip()
        if kept:
            self.keys[place : place + 1] = [merged([frozenset([key]), *self.keys[place : place + 1]])]
            self.notes[place : place + 1] = [kept]
            self._letters = letters + len(kept)
        return [] if kept == note else [FULL]

    def shown(self) -> str:
        """Return the notes with their numbers, one per line."""
        return "\n".join(f"{number}: {note}" for number, note in enumerate(self.notes, 1))


def notes_in(text: str) -> list[str]:
    """Return the notes in a text, one per line of the text.

    >>> notes_in("- Ann likes rice.\\nnothing")
    ['Ann likes rice.']
    """
    lines = (" ".join(line.split()).removeprefix("- ") for line in text.splitlines())
    return [line for line in lines if line and not _NOTHING.match(line)]
