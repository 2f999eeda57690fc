"""Command ``marft shadow``, and the observer of ``marft serve --shadow``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from marft.cli.handlers import silence_transformers
from marft.cli.output import OutputMode, open_output
from marft.common.errors import UserError
from marft.evaluation.checkpoint_results import format_number, format_signed
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.options import ShadowTeam, SidecarSpec

if TYPE_CHECKING:
    from marft_lab.shadow.sequential_test import Verdict
    from marft_lab.shadow.sessions import SessionEvent
    from marft_lab.shadow.setup import ShadowRequest

PROGRESS_INTERVAL = 10  # sessions between progress lines
STYLES = {"promote": "green", "stop": "red", "hold": "yellow"}


def open_sidecar(shadow_team: ShadowTeam) -> SidecarSpec:
    """Return an observer that runs a shadow beside a server.

    The team and its settings are checked at once, before the server starts.

    Raises:
        UserError: the team cannot be served, its shadow settings are invalid, or they score by feedback.
    """
    from marft_lab.shadow.setup import DEFAULT_FOLDER, ShadowRequest
    from marft_lab.shadow.supervisor import ShadowSupervisor

    request = ShadowRequest(
        shadow_team.team,
        shadow_team.checkpoint,
        shadow_team.overrides,
        shadow_team.trust_code,
        shadow_team.sessions,
        shadow_team.output or shadow_team.sessions / DEFAULT_FOLDER,
        shadow_team.grade,
        follow=True,
    )
    settings = ShadowSettings.from_run(request.load_team().run)
    if settings.score == "feedback":
        raise UserError("shadow.score: users say what they think later; shadow with feedback afterwards: marft shadow")
    message = f"{shadow_team.team} plays them as a shadow; what comes of it is in {request.output.absolute()}"
    return SidecarSpec(lambda: ShadowSupervisor(request, settings), message)


def shadow(request: ShadowRequest, output_mode: OutputMode) -> bool:
    """Run ``marft shadow`` and print the report.

    Returns:
        True if the team is promoted.
    """
    silence_transformers()
    from marft_lab.shadow.report import PLOT_FILE, REPORT_FILE, build_report, explain_report
    from marft_lab.shadow.setup import run_shadow

    settings = ShadowSettings.from_run(request.load_team().run)
    with open_output(output_mode) as out:

        def report_line(line: SessionEvent, verdict: Verdict) -> None:
            out.emit(
                "session",
                session=line.session,
                kind=line.kind,
                served=line.served,
                shadow=line.shadow,
                verdict=verdict.word,
                sessions=verdict.sessions,
                lower=verdict.lower,
                upper=verdict.upper,
            )
            if output_mode == "" and line.kind == "compared" and verdict.sessions % PROGRESS_INTERVAL == 0:
                out.print(format_verdict(verdict))

        state = run_shadow(request, report_line)
        report = build_report(state, {})
        out.print(build_table(report))
        for sentence in explain_report(report, settings):
            out.print(Text(sentence, style=STYLES.get(sentence.partition(":")[0], "")))
        out.print(f"see {request.output / REPORT_FILE}" + (f" and {PLOT_FILE}" if state.verdict.sessions else ""))
        out.emit("done", **{key: value for key, value in report.items() if key != "about"}, output=request.output)
    return state.verdict.word == "promote"


def format_verdict(verdict: Verdict) -> str:
    """Format the current verdict as one line."""
    mean = "" if verdict.mean is None else f"{verdict.mean:+.3f}, "
    return f"{verdict.sessions} sessions: {mean}between {verdict.lower:+.3f} and {verdict.upper:+.3f}"


def build_table(report: Mapping[str, Any]) -> Table:
    """Format the report as a table with a single row."""
    verdict = report["verdict"]
    table = Table(box=None, pad_edge=False)
    cells: dict[str, Text | str] = {
        "verdict": Text(verdict["word"], style=STYLES[verdict["word"]]),
        "sessions": str(verdict["sessions"]),
        "served": format_number(report["served"]),
        "shadow": format_number(report["shadow"]),
        "better": str(report["better"]),
        "worse": str(report["worse"]),
        "difference": format_signed(verdict["mean"]),
        "at least": format_signed(verdict["lower"]),
        "at most": format_signed(verdict["upper"]),
        "p, better": f"{verdict['p_better']:.3g}",
        "p, worse": f"{verdict['p_worse']:.3g}",
    }
    for heading in cells:
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    table.add_row(*cells.values())
    return table
