"""Comparison of a shadow with a served team: sessions are played, scored and recorded, with a test after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.common.types import Episode
from marft_lab.shadow.player import ShadowPlayer, ShadowResult
from marft_lab.shadow.scorers import Scorer, UnscoredError
from marft_lab.shadow.sequential_test import SequentialTest, Verdict
from marft_lab.shadow.sessions import SessionEvent, SessionLog, SessionQueue, SkippedSessions
from marft_lab.shadow.settings import ShadowSettings

LOG_FILE = "sessions.jsonl"
POLL_SECONDS = 1.0  # interval between checks for new sessions
# settings that do not affect the comparison
NEUTRAL_SETTINGS = frozenset({"pause", "resume_after_idle_seconds", "threads", "backlog", "priority"})
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ShadowState:
    """State of a shadow evaluation."""

    verdict: Verdict
    events: tuple[SessionEvent, ...]
    skipped: SkippedSessions


def comparison_identity(settings: ShadowSettings, team: str, sessions: Path, graded_by: str) -> dict[str, object]:
    """Return a test's identity; the rules of a sequential test must stay fixed."""
    rules = {key: value for key, value in settings.model_dump(mode="json").items() if key not in NEUTRAL_SETTINGS}
    return {"team": team, "sessions": str(sessions), "graded by": graded_by, **rules}


class ShadowComparer:
    """Comparison that resumes from its journal.

    Args:
        settings: settings of the shadow.
        folder: folder of recorded sessions.
        session_log: journal of the comparison.
        seed: seed of the session sampling.
        follow: True while sessions are still recorded; the backlog then keeps the newest sessions.
    """

    def __init__(
        self, settings: ShadowSettings, folder: Path, session_log: SessionLog, seed: int, follow: bool = False
    ) -> None:
        self.settings, self.session_log, self.follow = settings, session_log, follow
        self.sequential_test = SequentialTest(settings)
        for line in session_log.compared_events():
            self.sequential_test.add(line.difference)
        self._crash_counts = session_log.count_process_exits()
        max_pending = settings.backlog if follow else 0
        self.sessions = SessionQueue(
            folder,
            seed,
            settings.share,
            session_log.finished_sessions(),
            max_pending,
            lambda name: session_log.add(SessionEvent("dropped", name)),
        )

    @property
    def state(self) -> ShadowState:
        """Current state."""
        return ShadowState(self.sequential_test.verdict, tuple(self.session_log.events), self.sessions.skipped)

    def run(
        self,
        player: ShadowPlayer,
        scorer: Scorer,
        *,
        on_session: Callable[[SessionEvent, Verdict], None] = lambda *_: None,
        stopped: Stop = lambda: False,
    ) -> ShadowState:
        """Play available sessions until the verdict is final; with ``follow``, wait for new sessions.

        Args:
            player: player of sessions.
            scorer: scorer of answers.
            on_session: callback for each finished session.
            stopped: function that returns True to stop.

        Returns:
            The final state.
        """
        while not (self.sequential_test.is_final or stopped()):
            for session in self.sessions.pending_sessions():
                line = self._play_session(player, scorer, session)
                self.session_log.add(line)
                if line.kind == "compared":
                    self.sequential_test.add(line.difference)
                on_session(line, self.sequential_test.verdict)
                if self.sequential_test.is_final or stopped():
                    break
            if not self.follow:
                break
            if not (self.sequential_test.is_final or stopped()):
                time.sleep(POLL_SECONDS)
        return self.state

    def _play_session(self, player: ShadowPlayer, scorer: Scorer, session: Episode) -> SessionEvent:
        """Play and score a session; a session counts as failed after too many process exits."""
        name = session.task.id
        if self._crash_counts[name] > self.settings.max_retries:
            failed = Episode(session.task, "shadow", 0, (), "failed", error="it ended the shadow's process each time")
            return self._compare(scorer, session, ShadowResult(failed, 0, 0, 0), 0.0)
        self.session_log.add(SessionEvent("begun", name))
        start_time = time.perf_counter()
        try:
            result = player.play(session)
        except (KeyboardInterrupt, SystemExit):
            self.session_log.add(SessionEvent("let_go", name))
            raise
        return self._compare(scorer, session, result, time.perf_counter() - start_time)

    def _compare(self, scorer: Scorer, session: Episode, result: ShadowResult, seconds: float) -> SessionEvent:
        """Return the journal entry of a session, with both scores or a reason.

        A shadow without a valid answer, or with an answer that breaks the scorer, gets the minimum score.
        """
        counters: Mapping[str, Any] = {
            "answered": result.answered,
            "refused": result.refused,
            "effects": result.effects,
            "seconds": round(seconds, 3),
        }
        name, low, reason = session.task.id, self.settings.min_score, ""
        if result.refused and self.settings.refused == "skip":
            return SessionEvent("left_out", name, "a call of a tool had no recorded answer", **counters)
        try:
            served, shadow = scorer(session, session), low
        except UnscoredError as error:
            return SessionEvent("left_out", name, str(error), **counters)
        try:
            if result.episode.answer:
                shadow = scorer(session, result.episode)
            else:
                reason = f"no answer: {result.episode.status}: {result.episode.error}"
        except UnscoredError as error:  # leaving out such answers would favor the shadow
            reason = f"its answer could not be graded: {error}"
        served_score, shadow_score = (min(max(score, low), self.settings.max_score) for score in (served, shadow))
        return SessionEvent(
            "compared",
            name,
            reason,
            served_score,
            shadow_score,
            (served_score, shadow_score) != (served, shadow),
            **counters,
        )
