"""Classes with a state as the Berkeley function-calling leaderboard has them, of our own making."""

from __future__ import annotations

from typing import Any


class Note:
    """A note, which is equal to others of the same words only where somebody asks for its words."""

    def __init__(self, words: str, parent: Drawer) -> None:
        self.words, self.parent = words, parent


class Drawer:
    """Notes by name."""

    def __init__(self) -> None:
        self.notes: dict[str, Note] = {}
        self._opened = 0

    def _load_scenario(self, scenario: dict[str, Any], long_context: bool = False) -> None:
        self.notes = {name: Note(words, self) for name, words in scenario.get("notes", {}).items()}
        if long_context:
            self.notes["long"] = Note("long " * 100, self)

    def write(self, name: str, words: str = "") -> dict[str, str]:
        """Write a note."""
        self._opened += 1
        if name in self.notes:
            return {"error": f"{name} is there already"}
        self.notes[name] = Note(words, self)
        return {"written": name}

    def read(self, name: str) -> dict[str, str]:
        """Read a note."""
        self._opened += 1
        return {"words": self.notes[name].words} if name in self.notes else {"error": f"no note is called {name}"}


class Counter:
    """A number."""

    def __init__(self) -> None:
        self.number: float = 0

    def _load_scenario(self, scenario: dict[str, Any], long_context: bool = False) -> None:
        self.number = scenario.get("number", 0)

    def add(self, amount: float) -> dict[str, float]:
        """Add to the number."""
        self.number += amount
        return {"number": self.number}


class Shelf:
    """It has a method that a drawer has too."""

    def read(self, name: str) -> str:
        """Read a book."""
        return name
