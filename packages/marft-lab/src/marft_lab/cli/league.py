"""Command ``marft league``: matches between the versions of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.cli.commands import bar, quieten
from marft.cli.console import in_bold
from marft.cli.errors import beside
from marft.cli.output import How, output
from marft.common.texts import one_line
from marft.runs.folder import RunFolder


def league(path: Path, overrides: Sequence[str], matches: int, versions: int, how: How = "") -> None:
    """Play all pairs of versions, print the result and write the report.

    Args:
        path: run folder.
        overrides: command-line overrides of recipe keys.
        matches: matches per pair.
        versions: maximum number of versions.
        how: output format.

    Raises:
        ValueError: the run does not exist, or has no opponents.
    """
    folder = RunFolder.open(path)
    beside(folder.path)
    run = folder.settings_in_place(overrides)
    quieten()
    from marft_lab.league.evaluation.matches import league_of
    from marft_lab.league.evaluation.written import headline, tables, write_league
    from marft_lab.team_worth.words import for_terminal

    with output(how) as out:
        with bar("playing", shown=not how) as advance:
            found = league_of(run, folder, matches, versions, advance)
        page = write_league(folder.path / "league", found)
        for rows in tables(found):
            out.say(for_terminal(rows), "")
        for text in found.notes:
            out.note(text)
        out.say(in_bold(one_line(headline(found))), f"see {page}")
        out.tell("done", run=folder.path, headline=headline(found), report=page, **_told(found.as_json()))


def _told(table: dict[str, object]) -> dict[str, object]:
    return {key: table[key] for key in ("versions", "ratings", "scores", "exploitability")}
