"""Recorded sessions to replay: requests to the whole team, or a random sample."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from marft.common.seeds import derive_seed
from marft.common.types import Action, Episode
from marft.runs.episode_files import list_sessions, read_episodes

SEED_RANGE = 2.0**63  # of seeds


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
        self._seed, self._share, self._finished, self._max_pending, self._on_drop = (
            seed,
            share,
            set(finished),
            max_pending,
            on_drop,
        )
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
        for file in list_sessions(self.folder):
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
