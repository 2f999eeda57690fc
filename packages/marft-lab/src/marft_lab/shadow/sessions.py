"""Recorded sessions to replay: requests to the whole team, or a random sample."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from marft.common.seeds import derive_seed
from marft.common.types import Action, Episode
from marft.runs.episodes import read_episodes, sessions_in

RANGE = 2.0**63  # of seeds


def drawn(seed: int, session: str, share: float) -> bool:
    """Return True if a session is in the sample; the choice depends on the seed and the session's name only.

    >>> [drawn(0, f"session {n}", 0.5) for n in range(6)].count(True)
    3
    """
    return derive_seed(seed, "shadow", session) < share * RANGE


def answer_of(session: Episode) -> Action | None:
    """Return the answer to the client; None for a request to a single role, or without an answer."""
    return next((action for action in session.actions if session.answer and action.id == session.answer), None)


@dataclass(slots=True)
class Passed:
    """Skipped sessions by reason, and unreadable files."""

    not_drawn: int = 0
    no_answer: int = 0  # request to a role, failed, or recorded by a version without answers
    dropped: int = 0  # the backlog was full
    unreadable: list[str] = field(default_factory=list)


class Sessions:
    """A folder's sessions, oldest first.

    Args:
        folder: folder of recorded sessions.
        seed: seed of the sampling.
        share: fraction of the sessions.
        settled: names of finished sessions.
        backlog: maximum pending sessions; 0 for no limit, with lazy reading of files.
        drop: callback with the name of each dropped session, to record the drop.
    """

    def __init__(
        self, folder: Path, seed: int, share: float, settled: Collection[str], backlog: int = 0,
        drop: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.folder, self.passed = folder, Passed()
        self._seed, self._share, self._settled, self._backlog, self._drop = seed, share, set(settled), backlog, drop
        self._read: set[Path] = set()
        self._waiting: deque[Episode] = deque()

    def waiting(self) -> Iterator[Episode]:
        """Yield the pending sessions, each once; a later call continues with new sessions."""
        while True:
            self._look()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def _look(self) -> None:
        """Read new files: one file at a time without a backlog limit, else all files, to keep the newest sessions."""
        for file in sessions_in(self.folder):
            if file in self._read:
                continue
            if not self._backlog and self._waiting:
                return
            self._read.add(file)
            self._take(file)

    def _take(self, file: Path) -> None:
        try:
            found = read_episodes(file)
        except ValueError as error:
            self.passed.unreadable.append(str(error))
            return
        for session in found:
            name = session.task.id
            if name in self._settled:
                continue
            self._settled.add(name)
            if answer_of(session) is None or not session.scored:
                self.passed.no_answer += 1
            elif not drawn(self._seed, name, self._share):
                self.passed.not_drawn += 1
            else:
                self._waiting.append(session)
        while self._backlog and len(self._waiting) > self._backlog:
            self.passed.dropped += 1
            self._drop(self._waiting.popleft().task.id)
