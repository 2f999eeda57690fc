"""Shadow journal in an append-only file, safe against crashes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from marft.common import atomic

Kind = Literal["begun", "let_go", "compared", "left_out", "dropped"]
OPEN = ("begun", "let_go")


@dataclass(frozen=True, slots=True)
class Line:
    """Event of a session.

    Args:
        kind: ``begun`` for started, ``let_go`` for abandoned by a stop of the shadow, ``compared``, ``left_out`` for
            not comparable, or ``dropped`` for a full backlog.
        session: name of the session.
        why: reason without a comparison, or for the minimum score of the shadow.
        served: score of the served answer, within the bounds.
        shadow: score of the shadow's answer, within the bounds.
        clipped: True if a score was clipped to the bounds.
        answered: tool calls with a recorded result.
        refused: tool calls without a recorded result.
        effects: rejected side effects of the shadow.
        seconds: seconds of the shadow.
    """

    kind: Kind
    session: str
    why: str = ""
    served: float | None = None
    shadow: float | None = None
    clipped: bool = False
    answered: int = 0
    refused: int = 0
    effects: int = 0
    seconds: float = 0.0


NAMES = frozenset(field.name for field in fields(Line))


class Journal:
    """Journal of a shadow: reads existing entries and appends new entries.

    An incomplete last line is removed; its event is repeated.

    Args:
        path: file of the journal.
        about: identity of the test: team, recordings and settings.

    Raises:
        ValueError: the file is damaged or belongs to a different test.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = _whole(path, about) if path.exists() else []
        new = not path.exists() or not path.stat().st_size
        self._file = path.open("ab")
        if new:
            self._write({"about": dict(about)})
            atomic.sync_folder(path.parent)

    def add(self, line: Line) -> None:
        """Append an entry and sync the file to disk."""
        self._write(asdict(line))
        self.lines.append(line)

    def begun(self) -> Counter[str]:
        """Return the number of process exits during each unfinished session."""
        settled, found = self.settled(), Counter[str]()
        for line in self.lines:
            if line.kind in OPEN and line.session not in settled:
                found[line.session] += 1 if line.kind == "begun" else -1
        return found

    def settled(self) -> set[str]:
        """Return the finished sessions' names."""
        return {line.session for line in self.lines if line.kind not in OPEN}

    def compared(self) -> Iterator[Line]:
        """Return the entries of compared sessions, in order."""
        return (line for line in self.lines if line.kind == "compared")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, table: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(table, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def _whole(path: Path, about: Mapping[str, Any]) -> list[Line]:
    """Read the entries of a file, and remove an incomplete last line."""
    atomic.drop_unfinished_line(path)
    content = path.read_bytes()
    if not content:
        return []
    try:
        head, *tables = (json.loads(line) for line in content.splitlines())
        before = head["about"]
        lines = [Line(**table) for table in tables]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or no shadow's: {error}; take another --output") from error
    others = sorted(key for key in {*before, *about} if before.get(key) != about.get(key))
    if others:
        said = ", ".join(f"{key} ({before.get(key)!r}, now {about.get(key)!r})" for key in others)
        raise ValueError(
            f"{path} goes on with what it began with, and this is another: {said}. Take it back, or another --output: "
            "a test whose rules are changed while it is looked at shows nothing"
        )
    return lines
