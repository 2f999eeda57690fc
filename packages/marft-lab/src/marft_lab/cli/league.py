"""Command ``marft league``: matches between the versions of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.cli.console import bold
from marft.cli.errors import open_run_for_command
from marft.cli.handlers import progress_bar, silence_transformers
from marft.cli.output import OutputMode, open_output
from marft.common.texts import single_line


def run_league(path: Path, overrides: Sequence[str], matches: int, versions: int, output_mode: OutputMode = "") -> None:
    """Play all pairs of versions, print the result and write the report.

    Args:
        path: run folder.
        overrides: command-line overrides of recipe keys.
        matches: matches per pair.
        versions: maximum number of versions.
        output_mode: output format.

    Raises:
        ValueError: the run does not exist, or has no opponents.
    """
    folder = open_run_for_command(path)
    run = folder.relocated_settings(overrides)
    silence_transformers()
    from marft_lab.league.evaluation.matches import play_league
    from marft_lab.league.evaluation.report import build_tables, format_headline, write_report
    from marft_lab.team_evaluation.tables import render_terminal

    with open_output(output_mode) as out:
        with progress_bar("playing", enabled=not output_mode) as advance:
            result = play_league(run, folder, matches, versions, advance)
        page = write_report(folder.path / "league", result)
        for rows in build_tables(result):
            out.print(render_terminal(rows), "")
        for text in result.notes:
            out.note(text)
        out.print(bold(single_line(format_headline(result))), f"see {page}")
        out.emit(
            "done", run=folder.path, headline=format_headline(result), report=page, **_summary_fields(result.as_json())
        )


def _summary_fields(table: dict[str, object]) -> dict[str, object]:
    return {key: table[key] for key in ("versions", "ratings", "scores", "exploitability")}
