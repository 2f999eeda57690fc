"""Recorded sessions to play, and the journal of the shadow in an append-only file, safe against crashes."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.seeds import derive_seed
from marft.common.types import Action, Episode
from marft.runs.episode_files import list_serve_recordings, read_episodes

Kind = Literal["begun", "let_go", "compared", "left_out", "dropped"]
OPEN_KINDS = ("begun", "let_go")
SEED_RANGE = 2.0**63  # of seeds


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

    @property
    def difference(self) -> float:
        """Score difference, shadow − served; only for compared sessions."""
        assert self.served is not None
        assert self.shadow is not None
        return self.shadow - self.served


class SessionLog:
    """Journal of a shadow: reads existing entries and appends new entries.

    An incomplete last line is removed; its event is repeated.

    Args:
        path: file of the journal.
        identity: identity of the test: team, recordings and settings.

    Raises:
        UserError: the file is damaged or belongs to a different test.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
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

    def count_process_exits(self) -> Counter[str]:
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

    def _write(self, table: Mapping[str, object]) -> None:
        self._file.write((json.dumps(table, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def _read_events(path: Path, identity: Mapping[str, object]) -> list[SessionEvent]:
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
        raise UserError(f"{path} is damaged, or no shadow's: {error}; take another --output") from error
    changed = sorted(key for key in {*before, *identity} if before.get(key) != identity.get(key))
    if changed:
        changes = ", ".join(f"{key} ({before.get(key)!r}, now {identity.get(key)!r})" for key in changed)
        raise UserError(
            f"{path} goes on with what it began with, and this is another: {changes}. Take it back, or another "
            "--output: a test whose rules are changed while it is looked at shows nothing"
        )
    return lines


def is_sampled(seed: int, session: str, share: float) -> bool:
    """Return True if a session is in the sample; the choice depends on the seed and the session's name only.

    >>> [is_sampled(0, f"session {n}", 0.5) for n in range(6)].count(True)
    3
    """
    return derive_seed(seed, "shadow", session) < share * SEED_RANGE


def find_answer(session: Episode) -> Action | None:
    """Return the answer to the client; None for a request to a single role, or without an answer."""
    return next((action for action in session.actions if session.answer and action.id == session.answer), None)


@dataclass(slots=True)
class SkippedSessions:
    """Skipped sessions by reason, and unreadable files."""

    not_drawn: int = 0
    no_answer: int = 0  # request to a role, failed, or recorded by a version without answers
    dropped: int = 0  # the backlog was full
    unreadable: list[str] = field(default_factory=list)


class SessionQueue:
    """A folder's sessions, oldest first.

    Args:
        folder: folder of recorded sessions.
        seed: seed of the sampling.
        share: fraction of the sessions.
        finished: names of finished sessions.
        max_pending: maximum pending sessions; 0 for no limit, with lazy reading of files.
        on_drop: callback with the name of each dropped session, to record the drop.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        share: float,
        finished: Collection[str],
        max_pending: int = 0,
        on_drop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.skipped = folder, SkippedSessions()
        self._seed, self._share, self._finished = seed, share, set(finished)
        self._max_pending, self._on_drop = max_pending, on_drop
        self._read_files: set[Path] = set()
        self._pending: deque[Episode] = deque()

    def pending_sessions(self) -> Iterator[Episode]:
        """Yield the pending sessions, each once; a later call continues with new sessions."""
        while True:
            self._read_new_files()
            if not self._pending:
                return
            yield self._pending.popleft()

    def _read_new_files(self) -> None:
        """Read new files: one file at a time without a backlog limit, else all files, to keep the newest sessions."""
        for file in list_serve_recordings(self.folder):
            if file in self._read_files:
                continue
            if not self._max_pending and self._pending:
                return
            self._read_files.add(file)
            self._add_file(file)

    def _add_file(self, file: Path) -> None:
        try:
            episodes = read_episodes(file)
        except ValueError as error:
            self.skipped.unreadable.append(str(error))
            return
        for session in episodes:
            name = session.task.id
            if name in self._finished:
                continue
            self._finished.add(name)
            if find_answer(session) is None or not session.is_scored:
                self.skipped.no_answer += 1
            elif not is_sampled(self._seed, name, self._share):
                self.skipped.not_drawn += 1
            else:
                self._pending.append(session)
        while self._max_pending and len(self._pending) > self._max_pending:
            self.skipped.dropped += 1
            self._on_drop(self._pending.popleft().task.id)
