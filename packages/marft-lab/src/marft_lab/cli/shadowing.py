"""Command ``marft shadow``, and the observer of ``marft serve --shadow``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from marft.cli.commands import quieten
from marft.cli.output import How, output
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.observers import Beside, Observer, SecondTeam

if TYPE_CHECKING:
    from marft_lab.shadow.evidence import Verdict
    from marft_lab.shadow.journal import Line
    from marft_lab.shadow.opening import Asked

FOLDER = "shadow"  # default output folder, inside the sessions folder
EVERY = 10  # sessions between progress lines
STYLES = {"promote": "green", "stop": "red", "hold": "yellow"}


def asked_of(
    team: Path, checkpoint: str, overrides: Sequence[str], trust_code: bool, sessions: Path, folder: Path | None,
    grade: Path | None, feedback: Path | None, follow: bool,
) -> Asked:  # fmt: skip
    """Return the shadow request of a command's options."""
    from marft_lab.shadow.opening import Asked

    return Asked(
        team, checkpoint, overrides, trust_code, sessions, folder or sessions / FOLDER, grade, feedback, follow
    )


def open_observer(second: SecondTeam) -> Observer:
    """Return an observer that runs a shadow beside a server.

    The team and its settings are checked at once, before the server starts.

    Raises:
        ValueError: the team cannot be served, or its shadow settings are invalid.
    """
    asked = asked_of(
        second.team, second.checkpoint, second.overrides, second.trust_code, second.sessions, second.output,
        second.grade, None, follow=True,
    )  # fmt: skip
    said = f"{second.team} plays them as a shadow; what comes of it is in {asked.output.absolute()}"
    return Observer(beginning(asked), said)


def beginning(asked: Asked) -> Callable[[], Beside]:
    """Return a function that starts a shadow process beside a server.

    The team and its settings are checked at once.

    Raises:
        ValueError: the team cannot be served, its shadow settings are invalid, or they score by feedback.
    """
    from marft_lab.shadow.beside import ShadowBeside

    settings = ShadowSettings.of(asked.served().run)
    if settings.score == "feedback":
        raise ValueError("shadow.score: users say what they think later; shadow with feedback afterwards: marft shadow")
    return lambda: ShadowBeside(asked, settings)


def shadow(asked: Asked, how: How) -> bool:
    """Run ``marft shadow`` and print the report.

    Returns:
        True if the team is promoted.
    """
    quieten()
    from marft_lab.shadow.opening import shadow as run_shadow
    from marft_lab.shadow.report import PICTURE, REPORT, report_of, sentences

    settings = ShadowSettings.of(asked.served().run)
    with output(how) as out:

        def tell(line: Line, verdict: Verdict) -> None:
            told = {"session": line.session, "kind": line.kind, "served": line.served, "shadow": line.shadow}
            out.tell("session", **told, verdict=verdict.word, sessions=verdict.sessions, lower=verdict.lower,
                     upper=verdict.upper)  # fmt: skip
            if how == "" and line.kind == "compared" and verdict.sessions % EVERY == 0:
                out.say(in_a_line(verdict))

        state = run_shadow(asked, tell)
        report = report_of(state, {})
        out.say(table_of(report))
        for sentence in sentences(report, settings):
            out.say(Text(sentence, style=STYLES.get(sentence.partition(":")[0], "")))
        out.say(f"see {asked.output / REPORT}" + (f" and {PICTURE}" if state.verdict.sessions else ""))
        out.tell("done", **{key: value for key, value in report.items() if key != "about"}, output=asked.output)
    return state.verdict.word == "promote"


def in_a_line(verdict: Verdict) -> str:
    """Format the current verdict as one line."""
    mean = "" if verdict.mean is None else f"{verdict.mean:+.3f}, "
    return f"{verdict.sessions} sessions: {mean}between {verdict.lower:+.3f} and {verdict.upper:+.3f}"


def table_of(report: Mapping[str, Any]) -> Table:
    """Format the report as a table with a single row."""
    verdict = report["verdict"]
    table = Table(box=None, pad_edge=False)
    cells: dict[str, Text | str] = {
        "verdict": Text(verdict["word"], style=STYLES[verdict["word"]]),
        "sessions": str(verdict["sessions"]),
        "served": _number(report["served"]),
        "shadow": _number(report["shadow"]),
        "better": str(report["better"]),
        "worse": str(report["worse"]),
        "difference": _signed(verdict["mean"]),
        "at least": _signed(verdict["lower"]),
        "at most": _signed(verdict["upper"]),
        "p, better": f"{verdict['p_better']:.3g}",
        "p, worse": f"{verdict['p_worse']:.3g}",
    }
    for heading in cells:
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    table.add_row(*cells.values())
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"
