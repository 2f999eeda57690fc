"""Tables of the comparison, for the terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line
from marft.evaluation.compare import between, number, percent, points, signed
from marft_lab.team_worth.contributions import Share
from marft_lab.team_worth.scores import Measure, Value
from marft_lab.team_worth.session import Worth
from marft_lab.team_worth.swaps import Matrix

Form = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Rows:
    """Table with ``left`` text columns, followed by number columns."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    left: int = 1


def tables(found: Worth) -> list[Rows]:
    """Return the tables, in the parts' order."""
    return [
        _arms(found),
        *(_matrix(matrix, found.measure) for matrix in found.matrices),
        *([_shares(found.resampled.shares)] if found.resampled and found.resampled.shares else []),
    ]


def for_terminal(rows: Rows) -> Table:
    """Return a table for the terminal, with its title."""
    table = Table(box=None, pad_edge=False, title=Text(one_line(rows.title)), title_justify="left", title_style="bold")
    for index, heading in enumerate(rows.headings):
        right = index >= rows.left
        table.add_column(Text(heading), justify="right" if right else "left", no_wrap=right)
    for cells in rows.cells:
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def as_markdown(found: Worth, pictures: Sequence[str]) -> str:
    """Return the result as Markdown: tables, notes, and references to plots in the same folder.

    Args:
        found: result of the comparison.
        pictures: names of the plots, without suffix.
    """
    parts = [f"# Is the team worth it? {_plain(found.run)}", _plain(headline(found))]
    for rows in tables(found):
        marks = ["---"] * rows.left + ["---:"] * (len(rows.headings) - rows.left)
        lines = [rows.headings, marks, *rows.cells]
        parts += [f"## {_plain(rows.title)}", "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)]
    parts += [f"![{name}]({name}.svg)" for name in pictures]
    parts += ["\n".join(f"- {_plain(part)}: {_plain(text)}" for part, text in found.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(found: Worth) -> str:
    """Return the result as a sentence: the team and the best alternative at no higher cost."""
    team, form = found.rows[0], forms(found.measure)[0]
    own = team.values.get(found.measure)
    said = f"{found.checkpoint}: the team has {found.measure} {form(own.value if own else None)} on {found.tasks} tasks"
    alone = [row for row in found.rows if row.part == "single" and "verifier" not in row.name]
    rivals = [(row, value) for row in alone if (value := row.values.get(found.measure))]
    if not rivals:
        return f"{said}, with {_whole(team.tokens)} tokens"
    row, rival = max(rivals, key=lambda pair: pair[1].value)
    return (
        f"{said}, with {_whole(team.tokens)} tokens; {row.name} has {form(rival.value)}, with {_whole(row.tokens)}: "
        f"{verdict(rival)}"
    )


def verdict(rival: Value) -> str:
    """Describe the result of a single agent compared with the team, based on the interval.

    >>> verdict(Value(0.5, None, -0.25, (-0.375, -0.125))), verdict(Value(0.5, None, 0.0, (-0.125, 0.125)))
    ('the team is better', 'the tasks do not tell which is better')
    """
    low, high = rival.difference_interval or (0.0, 0.0)
    if high < 0:
        return "the team is better"
    return "the team is worse" if low > 0 else "the tasks do not tell which is better"


def forms(measure: Measure) -> tuple[Form, Form]:
    """Return the formatters of a measure's values and differences."""
    return (percent, points) if measure == "accuracy" else (number, signed)


def _arms(found: Worth) -> Rows:
    value, difference = forms(found.measure)
    inner = _hundredths if found.measure == "accuracy" else number
    failed = any(row.failed for row in found.rows)
    cells = []
    for row in found.rows:
        shown = row.values.get(found.measure)
        numbers = [""] * 4
        if shown is not None:
            numbers = [
                value(shown.value), between(shown.interval, inner), difference(shown.difference),
                between(shown.difference_interval, difference),
            ]  # fmt: skip
        costs = [str(row.attempts), _whole(row.tokens), _tenths(row.seconds)]
        cells.append([row.name, *numbers, *costs, *([str(row.failed)] if failed else [])])
    headings = ["", found.measure, "95 %", "difference", "95 %", "tries", "tokens", "seconds", *["failed"] * failed]
    return Rows(f"{found.checkpoint} on {found.tasks} held-out tasks, and what else was in its place", headings, cells)


def _matrix(matrix: Matrix, measure: Measure) -> Rows:
    value, _ = forms(measure)
    cells = [
        [f"{matrix.policy} of {name}", *(_cell(row.values.get(measure), value) for row in rows)]
        for name, rows in zip(matrix.checkpoints, matrix.rows, strict=True)
    ]
    title = f"{matrix.policy} of one checkpoint with {matrix.others} of another: {measure}"
    return Rows(title, ["", *(f"{matrix.others} of {name}" for name in matrix.checkpoints)], cells)


def _cell(value: Value | None, form: Form) -> str:
    return "" if value is None else f"{form(value.value)} ({between(value.interval, form)})".removesuffix(" ()")


def _shares(shares: Sequence[Share]) -> Rows:
    cells = [
        [
            share.agent, str(share.actions), signed(share.contribution.value),
            between(share.contribution.interval, signed), number(share.variance.value),
            between(share.variance.interval, number), number(share.own.value) if share.own else "",
            between(share.own.interval, number) if share.own else "",
        ]
        for share in shares
    ]  # fmt: skip
    headings = ["", "actions", "contribution", "95 %", "variance", "95 %", "own part", "95 %"]
    return Rows("Actions sampled again: what the reward was more, and how much it varied", headings, cells)


def _hundredths(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _tenths(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _plain(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
