"""What was found, as tables: for the terminal, for Markdown, for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from marft.evaluation.compare import between, number, percent, points, signed
from marft.evaluation.worth.contributions import Share
from marft.evaluation.worth.scores import Measure, Value
from marft.evaluation.worth.session import Worth
from marft.evaluation.worth.swaps import Matrix
from marft.texts import one_line

Form = Callable[[float | None], str]
NAMES = {"accuracy": "accuracy", "reward": "reward"}


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: the first ``left`` columns are words, the others numbers."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    left: int = 1


def tables(found: Worth) -> list[Rows]:
    """Every table there is, in the order of the parts."""
    return [
        _arms(found),
        *(_matrix(matrix, found.measure) for matrix in found.matrices),
        *([_shares(found.resampled.shares)] if found.resampled and found.resampled.shares else []),
    ]


def for_terminal(rows: Rows) -> Table:
    """With its title above it."""
    table = Table(box=None, pad_edge=False, title=Text(one_line(rows.title)), title_justify="left", title_style="bold")
    for index, heading in enumerate(rows.headings):
        right = index >= rows.left
        table.add_column(Text(heading), justify="right" if right else "left", no_wrap=right and " " not in heading)
    for cells in rows.cells:
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def as_markdown(found: Worth, pictures: Sequence[str]) -> str:
    """Tables, what must be known, and pictures that lie beside it, by their names."""
    parts = [f"# Is the team worth it? {_plain(found.run)}", _plain(headline(found))]
    for rows in tables(found):
        marks = ["---"] * rows.left + ["---:"] * (len(rows.headings) - rows.left)
        lines = [rows.headings, marks, *rows.cells]
        parts += [f"## {_plain(rows.title)}", "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)]
    parts += [f"![{name}]({name}.svg)" for name in pictures]
    parts += ["\n".join(f"- {_plain(part)}: {_plain(text)}" for part, text in found.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(found: Worth) -> str:
    """The answer in a sentence: the team beside the best of what it could be replaced by at its own price."""
    team = found.rows[0].values.get(found.measure)
    alone = [row for row in found.rows if row.part == "single" and "verifier" not in row.name]
    rivals = [(row, value) for row in alone if (value := row.values.get(found.measure))]
    form, _ = forms(found.measure)
    said = f"{found.checkpoint}: the team has {NAMES[found.measure]} {form(team.value if team else None)}"
    if not rivals:
        return f"{said} on {found.tasks} held-out tasks."
    row, rival = max(rivals, key=lambda pair: pair[1].value)
    return (
        f"{said} on {found.tasks} held-out tasks; at no more tokens, {row.name} has {form(rival.value)}, "
        f"{verdict(rival)}."
    )


def verdict(rival: Value) -> str:
    """How one agent stands to the team, as far as the interval tells.

    >>> verdict(Value(0.5, None, -0.25, (-0.375, -0.125))), verdict(Value(0.5, None, 0.0, (-0.125, 0.125)))
    ('so the team is worth it', 'which does not tell which of them is better')
    """
    low, high = rival.difference_interval or (0.0, 0.0)
    if high < 0:
        return "so the team is worth it"
    return "so the team is not worth it" if low > 0 else "which does not tell which of them is better"


def forms(measure: Measure) -> tuple[Form, Form]:
    """How a value reads, and a difference."""
    return (percent, points) if measure == "accuracy" else (number, signed)


def _arms(found: Worth) -> Rows:
    value, difference = forms(found.measure)
    cells = []
    for row in found.rows:
        shown = row.values.get(found.measure)
        numbers = [""] * 4
        if shown is not None:
            numbers = [
                value(shown.value), between(shown.interval, value), difference(shown.difference),
                between(shown.difference_interval, difference),
            ]  # fmt: skip
        cells.append([row.name, *numbers, str(row.attempts), _whole(row.tokens), _tenths(row.seconds), str(row.failed)])
    headings = (
        "", NAMES[found.measure], "95 % interval", "beside the team", "95 % interval", "attempts", "tokens", "seconds",
        "not scored",
    )  # fmt: skip
    return Rows(f"{found.checkpoint}, {found.tasks} held-out tasks", headings, cells)


def _matrix(matrix: Matrix, measure: Measure) -> Rows:
    value, _ = forms(measure)
    cells = [
        [f"{matrix.policy} of {name}", *(_cell(row.values.get(measure), value) for row in rows)]
        for name, rows in zip(matrix.checkpoints, matrix.rows, strict=True)
    ]
    title = f"{matrix.policy} of one checkpoint with {matrix.others} of another: {NAMES[measure]}"
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
    headings = (
        "", "actions", "contribution", "95 % interval", "variance of the reward", "95 % interval", "its own part",
        "95 % interval",
    )  # fmt: skip
    return Rows("Actions sampled again", headings, cells)


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _tenths(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _plain(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
