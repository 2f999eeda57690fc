"""A shadow from beginning to verdict: sessions are played, compared, written down, and judged after each of them."""

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
LOOK_SECONDS = 1.0  # between looks for new sessions
FREE = frozenset({"pause", "idle_seconds", "threads", "backlog", "priority"})  # settings that change no comparison
Stop = Callable[[], bool]


class Player(Protocol):
    """Plays a session with the shadow."""

    def play(self, session: Episode) -> Played: ...


@dataclass(frozen=True, slots=True)
class State:
    """Where a shadow is."""

    verdict: Verdict
    lines: tuple[Line, ...]
    passed: Passed


def about(settings: ShadowSettings, team: str, sessions: Path, graded_by: str) -> dict[str, Any]:
    """What all lines of a journal hold for: a test whose rules change while it runs is none."""
    rules = {key: value for key, value in settings.model_dump(mode="json").items() if key not in FREE}
    return {"team": team, "sessions": str(sessions), "graded by": graded_by, **rules}


class Comparing:
    """Goes on where its journal ends.

    Args:
        seed: by which a share of the sessions is drawn.
        follow: sessions are still recorded: of those that wait the newest are kept.
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
        """Where it is."""
        return State(self.evidence.verdict, tuple(self.journal.lines), self.sessions.passed)

    def run(
        self, player: Player, scorer: Scorer, *, tell: Callable[[Line, Verdict], None] = lambda *_: None,
        stopped: Stop = lambda: False,
    ) -> State:  # fmt: skip
        """Play what there is, until the verdict is final; with ``follow`` what comes, too.

        Args:
            tell: told of each session that is done with.
            stopped: whether somebody wants it to end.
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
        """What becomes of a session. One that ended so many processes of the shadow is none that it can answer."""
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
        """A line: what the two are worth, or why that cannot be said. A shadow without an answer, or with
        one that breaks what grades it, is worth the least."""
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
        except UnscoredError as error:  # left out, its worst answers would make it the better
            why = f"its answer could not be graded: {error}"
        one, two = (min(max(worth, low), self.settings.high) for worth in (served, shadow))
        return Line("compared", name, why, one, two, (one, two) != (served, shadow), **had)
