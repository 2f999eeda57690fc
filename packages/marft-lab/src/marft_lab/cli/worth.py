"""Command ``marft worth``: benefit of the team relative to its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from marft.cli.commands import bar, quieten
from marft.cli.console import in_bold
from marft.cli.errors import beside
from marft.cli.output import How, output
from marft.common.texts import one_line
from marft.runs.folder import RunFolder
from marft_lab.team_worth.options import Options


def worth(path: Path, overrides: Sequence[str], options: Options, how: How = "") -> None:
    """Play the requested comparisons, print the result and write the report.

    Finished episodes are kept after an interrupt.

    Args:
        path: run folder.
        overrides: command-line overrides of recipe keys.
        options: options of the comparisons.
        how: output format.

    Raises:
        ValueError: unknown run, checkpoint or part.
    """
    folder = RunFolder.open(path)
    beside(folder.path)
    run = folder.settings_in_place(overrides)
    quieten()
    from marft_lab.team_worth.session import worth_of
    from marft_lab.team_worth.words import for_terminal, headline, tables
    from marft_lab.team_worth.written import write_worth

    with output(how) as out:
        plan: Callable[[str], None] = out.note if how != "quiet" else lambda _: None
        try:
            with bar("playing", shown=not how) as advance:
                found = worth_of(run, folder, options, advance, plan)
        except KeyboardInterrupt:
            out.note("what was played is kept: the same command goes on from there")
            raise
        page = write_worth(folder.worth, found)
        for rows in tables(found):
            out.say(for_terminal(rows), "")
        notes = [one_line(f"{part}: {text}") for part, text in found.notes]
        for note in notes:
            out.note(note)
        out.say(in_bold(one_line(headline(found))), f"see {page}")
        told = [asdict(row) for row in found.rows]
        out.tell("done", run=folder.path, checkpoint=found.checkpoint, headline=headline(found), rows=told, report=page)
