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
OPEN_KINDS = ("begun", "let_go")


@dataclass(frozen=True, slots=True)
class SessionEvent:
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


EVENT_FIELDS = frozenset(field.name for field in fields(SessionEvent))


class SessionLog:
    """Journal of a shadow: reads existing entries and appends new entries.

    An incomplete last line is removed; its event is repeated.

    Args:
        path: file of the journal.
        identity: identity of the test: team, recordings and settings.

    Raises:
        ValueError: the file is damaged or belongs to a different test.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.events = _read_events(path, identity) if path.exists() else []
        new = not path.exists() or not path.stat().st_size
        self._file = path.open("ab")
        if new:
            self._write({"about": dict(identity)})
            atomic.sync_folder(path.parent)

    def add(self, event: SessionEvent) -> None:
        """Append an entry and sync the file to disk."""
        self._write(asdict(event))
        self.events.append(event)

    def count_crashes(self) -> Counter[str]:
        """Return the number of process exits during each unfinished session."""
        finished, counts = self.finished_sessions(), Counter[str]()
        for line in self.events:
            if line.kind in OPEN_KINDS and line.session not in finished:
                counts[line.session] += 1 if line.kind == "begun" else -1
        return counts

    def finished_sessions(self) -> set[str]:
        """Return the finished sessions' names."""
        return {line.session for line in self.events if line.kind not in OPEN_KINDS}

    def compared_events(self) -> Iterator[SessionEvent]:
        """Return the entries of compared sessions, in order."""
        return (line for line in self.events if line.kind == "compared")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, table: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(table, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def _read_events(path: Path, identity: Mapping[str, Any]) -> list[SessionEvent]:
    """Read the entries of a file, and remove an incomplete last line."""
    atomic.truncate_partial_line(path)
    content = path.read_bytes()
    if not content:
        return []
    try:
        head, *tables = (json.loads(line) for line in content.splitlines())
        before = head["about"]
        lines = [SessionEvent(**table) for table in tables]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or no shadow's: {error}; take another --output") from error
    changed = sorted(key for key in {*before, *identity} if before.get(key) != identity.get(key))
    if changed:
        changes = ", ".join(f"{key} ({before.get(key)!r}, now {identity.get(key)!r})" for key in changed)
        raise ValueError(
            f"{path} goes on with what it began with, and this is another: {changes}. Take it back, or another "
            "--output: a test whose rules are changed while it is looked at shows nothing"
        )
    return lines
