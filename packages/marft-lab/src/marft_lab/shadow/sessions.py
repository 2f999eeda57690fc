"""Which recorded sessions are played again: those in which the whole team was asked, or a share of them."""

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
    """Whether a session is among the share that is played: by its name alone, so the same ones whoever asks.

    >>> [drawn(0, f"session {n}", 0.5) for n in range(6)].count(True)
    3
    """
    return derive_seed(seed, "shadow", session) < share * RANGE


def answer_of(session: Episode) -> Action | None:
    """What the client was answered; None where one role was asked, or nobody answered."""
    return next((action for action in session.actions if session.answer and action.id == session.answer), None)


@dataclass(slots=True)
class Passed:
    """Sessions that were passed over, by reason, and files that cannot be read."""

    not_drawn: int = 0
    no_answer: int = 0  # of a role, failed, or recorded by a version that did not say what was answered
    dropped: int = 0  # more waited than may
    unreadable: list[str] = field(default_factory=list)


class Sessions:
    """The sessions of a folder, oldest first.

    Args:
        seed: by which the share is drawn.
        settled: names of those that were played before.
        backlog: how many may wait; 0: any number, and a file is read when it is due.
        drop: told the name of each that is dropped, so that it stays so.
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
        """Those that are there, each once; asked again it goes on with what has come since."""
        while True:
            self._look()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def _look(self) -> None:
        """Read new files: one, where any number may wait; all of them, where the newest are to be kept."""
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
