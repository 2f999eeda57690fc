"""What a shadow has done, line by line, in a file that only ever grows: it survives whatever ends the process."""

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
    """One thing that happened to a session.

    Args:
        kind: the shadow has begun it; it was let go, for somebody ended the shadow meanwhile; it was compared; it could
            not be; or it was dropped, for too many waited.
        session: its name.
        why: it is no difference, or a shadow's answer is worth as little as none.
        served, shadow: what they are worth, within their bounds.
        clipped: whether one of them was not, and was made so.
        answered, refused: calls of tools that had a recorded answer, and that had none.
        effects: that parts of the shadow tried to have, all refused.
        seconds: that it took the shadow.
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
    """Reads what is there and adds to it. A last line that was cut short is taken away: what it told is done again.

    Args:
        about: which team, recordings and settings the lines are of.

    Raises:
        ValueError: the lines that are there are of others, or damaged.
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
        """Write a line; it is on the disk when this returns."""
        self._write(asdict(line))
        self.lines.append(line)

    def begun(self) -> Counter[str]:
        """How often sessions were begun that ended the process with them."""
        settled, found = self.settled(), Counter[str]()
        for line in self.lines:
            if line.kind in OPEN and line.session not in settled:
                found[line.session] += 1 if line.kind == "begun" else -1
        return found

    def settled(self) -> set[str]:
        """Sessions that are done with."""
        return {line.session for line in self.lines if line.kind not in OPEN}

    def compared(self) -> Iterator[Line]:
        """Those that count, in their order."""
        return (line for line in self.lines if line.kind == "compared")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _write(self, table: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(table, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def _whole(path: Path, about: Mapping[str, Any]) -> list[Line]:
    """The lines of a file, from which a last one that was cut short is taken away."""
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
