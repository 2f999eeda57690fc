"""Notes under a budget."""

from __future__ import annotations

import re

_CHANGES = re.compile(r"^(\d{1,6})\s*[:.)]\s*(.+)$")
_DROPS = re.compile(r"^drop\s+(\d{1,6})\s*\.?$", re.IGNORECASE)
_NOTHING = re.compile(r"^nothing\.?$", re.IGNORECASE)


class Notebook:
    """Numbered notes that have at most ``budget`` characters together, line breaks between them included.

    A line of what is written is a new note; ``2: words`` puts others in the place of note 2, ``drop 2`` takes it out,
    ``nothing`` is no note. What exceeds the budget is cut: the end of the note that does, and notes after it.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.notes, self.written = budget, list[str](), 0
        self._letters = 0  # of all notes, without the breaks between them

    @property
    def size(self) -> int:
        """Characters that it holds."""
        return self._letters + max(len(self.notes) - 1, 0)

    def write(self, text: str) -> str:
        """Write down what is said → what could not be done, in words."""
        self.written += len(text)
        before = list(self.notes)  # what numbers mean while one text is read
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
                    problems += self._put(number - 1, changes[2])
                continue
            problems += self._put(len(self.notes), words.removeprefix("- "))
        self.notes = [note for place, note in enumerate(self.notes) if place not in dropped]
        self._letters = sum(map(len, self.notes))
        assert self.size <= self.budget
        return " ".join(dict.fromkeys(problems))

    def _put(self, place: int, note: str) -> list[str]:
        """Put a note there, as much of it as there is room for → what was cut."""
        before = self.notes[place : place + 1]
        others = len(self.notes) - len(before)  # each of which a break parts from the next
        letters = self._letters - sum(map(len, before))
        kept = note[: max(self.budget - letters - others, 0)].rstrip()
        if kept:
            self.notes[place : place + 1] = [kept]
            self._letters = letters + len(kept)
        return [] if kept == note else ["The notes are full: the rest was cut."]

    def shown(self) -> str:
        """The notes by number."""
        return "\n".join(f"{number}: {note}" for number, note in enumerate(self.notes, 1))
