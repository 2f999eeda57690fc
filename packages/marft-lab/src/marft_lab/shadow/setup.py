"""Setup of a shadow from a request: team, sessions and scorer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from marft.common.errors import UserError
from marft.common.user_modules import MANIFEST, is_export
from marft.config.load import load_recipe, to_toml
from marft.config.run import RunSettings
from marft.runs.export.manifest import load_export
from marft.runs.export.recipe import load_settings
from marft.runs.lock import lock_folder
from marft.runs.run_folder import RunFolder
from marft_lab.shadow.comparison import LOG_FILE, ShadowComparer, ShadowState, comparison_identity
from marft_lab.shadow.player import ShadowPlayer, to_shadow_team
from marft_lab.shadow.report import build_report, write_report
from marft_lab.shadow.scorers import AgreementScorer, RewardScorer, Scorer, read_feedback
from marft_lab.shadow.sequential_test import Verdict
from marft_lab.shadow.sessions import SessionEvent, SessionLog
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.recorder import read_tools
from marft_serve.serving.settings import ServedTeam, load_served_team

LOCK_FILE = "shadow.lock"
DEFAULT_FOLDER = "shadow"  # default output folder, inside the sessions folder
REPORT_SECONDS = 10.0  # interval between reports
OnSession = Callable[[SessionEvent, Verdict], None]


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """Shadow request.

    Args:
        team: second team, a run or an export.
        checkpoint: checkpoint of a run.
        overrides: command-line overrides of recipe keys.
        trust_code: True to run code of an export.
        sessions: folder of ``marft serve --record``.
        output: output folder.
        grade: recipe, run or export with reward terms and environment for scoring; None for the team's own.
        feedback: file of user feedback.
        follow: True while sessions are still recorded.
    """

    team: Path
    checkpoint: str
    overrides: Sequence[str]
    trust_code: bool
    sessions: Path
    output: Path
    grade: Path | None = None
    feedback: Path | None = None
    follow: bool = False

    def load_team(self) -> ServedTeam:
        """Return the team as for serving.

        Raises:
            UserError: the team cannot be served.
        """
        return load_served_team(self.team, self.checkpoint, self.overrides, self.trust_code)


@contextmanager
def open_shadow(request: ShadowRequest) -> Iterator[tuple[ShadowComparer, ShadowPlayer, Scorer, dict[str, object]]]:
    """Open or resume a shadow; yield the comparison, the player, the scorer and the identity of the test.

    Raises:
        UserError: missing input, or a different test than before.
    """
    if not request.sessions.is_dir() and not request.follow:
        raise UserError(
            f"--sessions: no folder is at {request.sessions}; marft serve TEAM --record {request.sessions} fills one"
        )
    team = request.load_team()
    settings = ShadowSettings.from_run(team.run)
    rules = comparison_identity(
        settings, _identity(team, request), request.sessions.resolve(), _grading_source(request, settings.score)
    )
    request.output.mkdir(parents=True, exist_ok=True)
    with lock_folder(request.output / LOCK_FILE, "or take another --output"), ExitStack() as exit_stack:
        scorer = _open_scorer(request, team.run)
        exit_stack.callback(scorer.close)
        session_log = SessionLog(request.output / LOG_FILE, rules)
        exit_stack.callback(session_log.close)
        comparison = ShadowComparer(settings, request.sessions, session_log, team.run.seed, request.follow)
        player = ShadowPlayer(to_shadow_team(team, read_tools(request.sessions)))
        exit_stack.callback(player.close)
        yield comparison, player, scorer, rules


def run_shadow(
    request: ShadowRequest, on_session: OnSession = lambda *_: None, stopped: Callable[[], bool] = lambda: False
) -> ShadowState:
    """Run a shadow until the verdict is final or no session is left, with regular reports.

    Args:
        request: shadow request.
        on_session: callback for each finished session.
        stopped: function that returns True to stop.

    Raises:
        UserError: as in :func:`open_shadow`.
    """
    with open_shadow(request) as (comparison, player, scorer, rules):
        settings, last = comparison.settings, [time.monotonic()]

        def write() -> None:
            write_report(request.output, build_report(comparison.state, rules), comparison.state, settings)

        def on_event(line: SessionEvent, verdict: Verdict) -> None:
            on_session(line, verdict)
            if time.monotonic() - last[0] > REPORT_SECONDS:
                write()
                last[0] = time.monotonic()

        try:
            return comparison.run(player, scorer, on_session=on_event, stopped=stopped)
        finally:
            write()


def _identity(team: ServedTeam, request: ShadowRequest) -> str:
    """Return a team's identity: its path, a digest of its checkpoint or export, and a digest of its recipe.

    The content of a path may change. Shadow settings are compared separately.
    """
    file = team.export.path / MANIFEST if team.export else None
    if team.checkpoint is not None:
        file = team.checkpoint / "state.json"
    assert file is not None, "a team that is served is a run's or an export's"
    recipe = to_toml(team.run.model_copy(update={"shadow": ShadowSettings(), "output": "-", "threads": 0}))
    return f"{request.team.resolve()} {_digest(file)} {hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def _grading_source(request: ShadowRequest, score: str) -> str:
    if score == "rewards":
        graded_by = (request.grade or request.team).resolve()
        recipe = next((path for path in (graded_by / MANIFEST, graded_by / "config.toml") if path.is_file()), graded_by)
        return f"{graded_by} {_digest(recipe)}" if recipe.is_file() else str(graded_by)
    if score == "feedback" and request.feedback:
        return str(request.feedback.resolve())
    return "the served answer"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _open_scorer(request: ShadowRequest, run: RunSettings) -> Scorer:
    settings = ShadowSettings.from_run(run)
    if settings.score == "agreement":
        return AgreementScorer(settings)
    if settings.score == "feedback":
        if request.feedback is None:
            raise UserError("--feedback: name the file in which users' feedback is, as shadow.score = 'feedback' says")
        return AgreementScorer(settings, read_feedback(request.feedback))
    return RewardScorer(_load_grading_recipe(request.grade or request.team, request.trust_code))


def _load_grading_recipe(path: Path, trust_code: bool) -> RunSettings:
    if is_export(path):
        return load_settings(load_export(path), (), trust_code)
    return RunFolder.open(path).relocated_settings() if path.is_dir() else load_recipe(path)
