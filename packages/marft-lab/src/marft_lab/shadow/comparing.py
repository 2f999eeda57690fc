"""Comparison of a shadow with a served team: sessions are played, scored and recorded, with a test after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marft.common.types import Episode
from marft_lab.shadow.evidence import Evidence, Verdict
from marft_lab.shadow.journal import Journal, Line
from marft_lab.shadow.playing import Played
from marft_lab.shadow.scoring import Scorer, UnscoredError
from marft_lab.shadow.sessions import Passed, Sessions
from marft_lab.shadow.settings import ShadowSettings

JOURNAL = "sessions.jsonl"
LOOK_SECONDS = 1.0  # interval between checks for new sessions
# settings that do not affect the comparison
FREE = frozenset({"pause", "idle_seconds", "threads", "backlog", "priority"})
Stop = Callable[[], bool]


class Player(Protocol):
    """Interface for session players."""

    def play(self, session: Episode) -> Played: ...


@dataclass(frozen=True, slots=True)
class State:
    """State of a shadow evaluation."""

    verdict: Verdict
    lines: tuple[Line, ...]
    passed: Passed


def about(settings: ShadowSettings, team: str, sessions: Path, graded_by: str) -> dict[str, Any]:
    """Return a test's identity; the rules of a sequential test must stay fixed."""
    rules = {key: value for key, value in settings.model_dump(mode="json").items() if key not in FREE}
    return {"team": team, "sessions": str(sessions), "graded by": graded_by, **rules}


class Comparing:
    """Comparison that resumes from its journal.

    Args:
        settings: settings of the shadow.
        folder: folder of recorded sessions.
        journal: journal of the comparison.
        seed: seed of the session sampling.
        follow: True while sessions are still recorded; the backlog then keeps the newest sessions.
    """

    def __init__(
        self, settings: ShadowSettings, folder: Path, journal: Journal, seed: int, follow: bool = False
    ) -> None:
        self.settings, self.journal, self.follow = settings, journal, follow
        self.evidence = Evidence(settings)
        for line in journal.compared():
            self._weigh(line)
        self._tries = journal.begun()
        backlog = settings.backlog if follow else 0
        self.sessions = Sessions(
            folder, seed, settings.share, journal.settled(), backlog, lambda name: journal.add(Line("dropped", name))
        )

    @property
    def state(self) -> State:
        """Current state."""
        return State(self.evidence.verdict, tuple(self.journal.lines), self.sessions.passed)

    def run(
        self, player: Player, scorer: Scorer, *, tell: Callable[[Line, Verdict], None] = lambda *_: None,
        stopped: Stop = lambda: False,
    ) -> State:  # fmt: skip
        """Play available sessions until the verdict is final; with ``follow``, wait for new sessions.

        Args:
            player: player of sessions.
            scorer: scorer of answers.
            tell: callback for each finished session.
            stopped: function that returns True to stop.

        Returns:
            The final state.
        """
        while not (self.evidence.final or stopped()):
            for session in self.sessions.waiting():
                line = self._of(player, scorer, session)
                self.journal.add(line)
                if line.kind == "compared":
                    self._weigh(line)
                tell(line, self.evidence.verdict)
                if self.evidence.final or stopped():
                    break
            if not self.follow:
                break
            if not (self.evidence.final or stopped()):
                time.sleep(LOOK_SECONDS)
        return self.state

    def _weigh(self, line: Line) -> None:
        assert line.served is not None
        assert line.shadow is not None
        self.evidence.add(line.shadow - line.served)

    def _of(self, player: Player, scorer: Scorer, session: Episode) -> Line:
        """Play and score a session; a session counts as failed after too many process exits."""
        name = session.task.id
        if self._tries[name] >= self.settings.tries:
            failed = Episode(session.task, "shadow", 0, (), "failed", error="it ended the shadow's process each time")
            return self._compared(scorer, session, Played(failed, 0, 0, 0), 0.0)
        self.journal.add(Line("begun", name))
        began = time.perf_counter()
        try:
            played = player.play(session)
        except (KeyboardInterrupt, SystemExit):
            self.journal.add(Line("let_go", name))
            raise
        return self._compared(scorer, session, played, time.perf_counter() - began)

    def _compared(self, scorer: Scorer, session: Episode, played: Played, seconds: float) -> Line:
        """Return the journal entry of a session, with both scores or a reason.

        A shadow without a valid answer, or with an answer that breaks the scorer, gets the minimum score.
        """
        had: Mapping[str, Any] = {
            "answered": played.answered, "refused": played.refused, "effects": played.effects,
            "seconds": round(seconds, 3),
        }  # fmt: skip
        name, low, why = session.task.id, self.settings.low, ""
        if played.refused and self.settings.refused == "leave_out":
            return Line("left_out", name, "a call of a tool had no recorded answer", **had)
        try:
            served, shadow = scorer(session, session), low
        except UnscoredError as error:
            return Line("left_out", name, str(error), **had)
        try:
            if played.episode.answer:
                shadow = scorer(session, played.episode)
            else:
                why = f"no answer: {played.episode.status}: {played.episode.error}"
        except UnscoredError as error:  # leaving out such answers would favor the shadow
            why = f"its answer could not be graded: {error}"
        one, two = (min(max(worth, low), self.settings.high) for worth in (served, shadow))
        return Line("compared", name, why, one, two, (one, two) != (served, shadow), **had)
