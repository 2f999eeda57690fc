"""Terminal tables with a row per metric and a column per evaluation, in blocks that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from marft.common.texts import single_line

MAX_WIDTH = 100  # maximum width of a table, also in files and wide terminals
GAP = 2  # spaces between columns


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Table with a column per evaluation. A block has as many columns as fit; other columns are in a block below.

    Args:
        title: heading of the labels.
        headings: lines of each column's heading; all columns have the same number.
        rows: label of each row and its cells, one per column.
    """

    title: str
    headings: Sequence[Sequence[str]]
    rows: Sequence[tuple[Text, Sequence[str]]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the blocks for the console's width."""
        for number, columns in enumerate(self.split(min(options.max_width, MAX_WIDTH))):
            yield from [Text("")] if number else []
            yield self._build_block(columns)

    def split(self, width: int) -> list[range]:
        """Return the columns of each block: as few blocks as fit ``width``, about equally wide."""
        label_width = max(map(cell_len, [single_line(self.title), *(label.plain for label, _ in self.rows)]))
        count = len(self.headings)
        widths = [GAP + max(map(cell_len, self._column_texts(number)), default=0) for number in range(count)]
        for size in range(count, 1, -1):
            blocks = -(-count // size)
            ends = [count * number // blocks for number in range(blocks + 1)]
            ranges = [range(*ends[number : number + 2]) for number in range(blocks)]
            if all(label_width + sum(widths[column] for column in columns) <= width for columns in ranges):
                return ranges
        return [range(number, number + 1) for number in range(count)]

    def _column_texts(self, number: int) -> Iterator[str]:
        yield from (single_line(line) for line in self.headings[number])
        yield from (single_line(cells[number]) for _, cells in self.rows)

    def _build_block(self, columns: range) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(overflow="fold")
        for _ in columns:
            table.add_column(justify="right", overflow="fold")
        lines = max((len(heading) for heading in self.headings), default=1)
        for line in range(lines):
            title = Text(single_line(self.title) if line == lines - 1 else "", "bold")
            table.add_row(title, *(Text(single_line(self.headings[number][line]), "bold") for number in columns))
        for label, cells in self.rows:
            table.add_row(label, *(Text(single_line(cells[number])) for number in columns))
        return table


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that tell different paths apart.

    >>> short_names(["runs/a", "old/runs/a", "runs/b"])
    ['runs/a', 'old/runs/a', 'b']
    """
    return [_short_name(path, {other for other in paths if other != path}) for path in paths]


def _short_name(path: str, others: set[str]) -> str:
    parts = PurePath(path).parts
    for number in range(1, len(parts)):
        end = parts[-number:]
        if all(PurePath(other).parts[-number:] != end for other in others):
            return str(PurePath(*end))
    return path
