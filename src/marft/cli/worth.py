"""``marft worth``: whether the team is worth what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from marft.cli.commands import bar, quieten
from marft.cli.console import in_bold, wide_console
from marft.cli.errors import beside
from marft.evaluation.worth.options import Options
from marft.runs.folder import RunFolder
from marft.texts import one_line


def worth(path: Path, overrides: Sequence[str], options: Options) -> None:
    """Play what is asked for, show it and write it down. What was played before an interrupt is kept.

    Raises:
        ValueError: there is no such run, checkpoint or part.
    """
    folder, console = RunFolder.open(path), wide_console()
    beside(folder.path)
    run = folder.settings_in_place(overrides)
    quieten()
    from marft.evaluation.worth.session import worth_of
    from marft.evaluation.worth.words import for_terminal, headline, tables
    from marft.evaluation.worth.written import write_worth

    try:
        with bar("playing") as advance:
            found = worth_of(run, folder, options, advance, lambda text: console.print(Text(text), soft_wrap=True))
    except KeyboardInterrupt:
        console.print("what was played is kept: the same command goes on from there")
        raise
    page = write_worth(folder.worth, found)
    for rows in tables(found):
        console.print(for_terminal(rows), "")
    for part, text in found.notes:
        console.print(Text(one_line(f"{part}: {text}")), soft_wrap=True)
    console.print(in_bold(one_line(headline(found))), soft_wrap=True)
    console.print(f"see {page}", soft_wrap=True)
