"""Setup of a shadow from a request: team, sessions and scorer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.common.user_modules import TEAM, is_export
from marft.config.load import load_recipe, to_toml
from marft.config.run import RunSettings
from marft.runs.export.loading import settings_of
from marft.runs.export.manifest import load_export
from marft.runs.folder import RunFolder
from marft.runs.lock import folder_held
from marft_lab.shadow.comparing import JOURNAL, Comparing, State, about
from marft_lab.shadow.evidence import Verdict
from marft_lab.shadow.journal import Journal, Line
from marft_lab.shadow.playing import Shadow, as_shadow
from marft_lab.shadow.report import report_of, write_report
from marft_lab.shadow.scoring import Agreement, Rewards, Scorer, read_feedback
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.offered import read_tools
from marft_serve.serving.settings import Served, served

LOCK = "shadow.lock"
REPORT_SECONDS = 10.0  # interval between reports
Tell = Callable[[Line, Verdict], None]


@dataclass(frozen=True, slots=True)
class Asked:
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

    def served(self) -> Served:
        """Return the team as for serving.

        Raises:
            ValueError: the team cannot be served.
        """
        return served(self.team, self.checkpoint, self.overrides, self.trust_code)


@contextmanager
def opened(asked: Asked) -> Iterator[tuple[Comparing, Shadow, Scorer, dict[str, Any]]]:
    """Open or resume a shadow; yield the comparison, the player, the scorer and the identity of the test.

    Raises:
        ValueError: missing input, or a different test than before.
    """
    if not asked.sessions.is_dir() and not asked.follow:
        raise ValueError(
            f"--from: no folder is at {asked.sessions}; marft serve TEAM --record {asked.sessions} fills one"
        )
    team = asked.served()
    settings = ShadowSettings.of(team.run)
    rules = about(settings, _identity(team, asked), asked.sessions.resolve(), _said_of(asked, settings.score))
    with folder_held(_made(asked.output) / LOCK, "or take another --output"), ExitStack() as closing:
        scorer = _scorer(asked, team.run)
        closing.callback(scorer.close)
        journal = Journal(asked.output / JOURNAL, rules)
        closing.callback(journal.close)
        comparing = Comparing(settings, asked.sessions, journal, team.run.seed, asked.follow)
        player = Shadow(as_shadow(team, read_tools(asked.sessions)))
        closing.callback(player.close)
        yield comparing, player, scorer, rules


def shadow(asked: Asked, tell: Tell = lambda *_: None, stopped: Callable[[], bool] = lambda: False) -> State:
    """Run a shadow until the verdict is final or no session is left, with regular reports.

    Args:
        asked: shadow request.
        tell: callback for each finished session.
        stopped: function that returns True to stop.

    Raises:
        ValueError: as in :func:`opened`.
    """
    with opened(asked) as (comparing, player, scorer, rules):
        settings, last = comparing.settings, [time.monotonic()]

        def write() -> None:
            write_report(asked.output, report_of(comparing.state, rules), comparing.state, settings)

        def told(line: Line, verdict: Verdict) -> None:
            tell(line, verdict)
            if time.monotonic() - last[0] > REPORT_SECONDS:
                write()
                last[0] = time.monotonic()

        try:
            return comparing.run(player, scorer, tell=told, stopped=stopped)
        finally:
            write()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _identity(team: Served, asked: Asked) -> str:
    """Return a team's identity: its path, a digest of its checkpoint or export, and a digest of its recipe.

    The content of a path may change. Shadow settings are compared separately.
    """
    file = team.export.path / TEAM if team.export else None
    if team.checkpoint is not None:
        file = team.checkpoint / "state.json"
    assert file is not None, "a team that is served is a run's or an export's"
    recipe = to_toml(team.run.model_copy(update={"shadow": ShadowSettings(), "output": "-", "threads": 0}))
    return f"{asked.team.resolve()} {_digest(file)} {hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def _said_of(asked: Asked, score: str) -> str:
    if score == "rewards":
        graded_by = (asked.grade or asked.team).resolve()
        recipe = next((path for path in (graded_by / TEAM, graded_by / "config.toml") if path.is_file()), graded_by)
        return f"{graded_by} {_digest(recipe)}" if recipe.is_file() else str(graded_by)
    if score == "feedback" and asked.feedback:
        return str(asked.feedback.resolve())
    return "the served answer"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _scorer(asked: Asked, run: RunSettings) -> Scorer:
    settings = ShadowSettings.of(run)
    if settings.score == "agreement":
        return Agreement(settings)
    if settings.score == "feedback":
        if asked.feedback is None:
            raise ValueError("--feedback: name the file in which users' feedback is, as shadow.score = 'feedback' says")
        return Agreement(settings, read_feedback(asked.feedback))
    return Rewards(_recipe_of(asked.grade or asked.team, asked.trust_code))


def _recipe_of(path: Path, trust_code: bool) -> RunSettings:
    if is_export(path):
        return settings_of(load_export(path), (), trust_code)
    return RunFolder.open(path).settings_in_place() if path.is_dir() else load_recipe(path)
