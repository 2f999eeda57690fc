"""Command ``marft worth``: benefit of the team relative to its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from marft.cli.console import bold
from marft.cli.errors import open_run_for_command
from marft.cli.handlers import progress_bar, silence_transformers
from marft.cli.output import OutputMode, open_output
from marft.common.texts import single_line
from marft_lab.team_evaluation.options import ComparisonOptions


def run_worth(path: Path, overrides: Sequence[str], options: ComparisonOptions, output_mode: OutputMode = "") -> None:
    """Play the requested comparisons, print the result and write the report.

    Finished episodes are kept after an interrupt.

    Args:
        path: run folder.
        overrides: command-line overrides of recipe keys.
        options: options of the comparisons.
        output_mode: output format.

    Raises:
        ValueError: unknown run, checkpoint or part.
    """
    folder = open_run_for_command(path)
    run = folder.relocated_settings(overrides)
    silence_transformers()
    from marft_lab.team_evaluation.report import write_report
    from marft_lab.team_evaluation.session import evaluate_team
    from marft_lab.team_evaluation.tables import build_tables, format_headline, render_terminal

    with open_output(output_mode) as out:
        try:
            with progress_bar("playing", enabled=not output_mode) as advance:
                result = evaluate_team(run, folder, options, advance)
        except KeyboardInterrupt:
            out.note("what was played is kept: the same command goes on from there")
            raise
        page = write_report(folder.worth, result)
        for rows in build_tables(result):
            out.print(render_terminal(rows), "")
        notes = [single_line(f"{part}: {text}") for part, text in result.notes]
        for note in notes:
            out.note(note)
        out.print(bold(single_line(format_headline(result))), f"see {page}")
        row_fields = [asdict(row) for row in result.rows]
        out.emit(
            "done",
            run=folder.path,
            checkpoint=result.checkpoint,
            headline=format_headline(result),
            rows=row_fields,
            report=page,
        )
