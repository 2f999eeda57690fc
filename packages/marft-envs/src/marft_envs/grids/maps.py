"""Grid cells, and maps as character rows with their symmetries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Cell = tuple[int, int]  # row and column from the top left, starting at 0
Rows = tuple[str, ...]  # equal lengths


def format_cell(cell: Cell) -> str:
    """Format a cell for agents: row and column from the top left, starting at 1.

    >>> format_cell((0, 2))
    '1,3'
    """
    return f"{cell[0] + 1},{cell[1] + 1}"


def format_cells(cells: Iterable[Cell]) -> str:
    """Format cells in reading order.

    >>> format_cells([(1, 0), (0, 2)])
    '1,3; 2,1'
    """
    return "; ".join(map(format_cell, sorted(cells)))


def parse_cell(text: str) -> Cell:
    """Parse a cell name, for example ``1,3``."""
    row, column = text.split(",")
    return int(row) - 1, int(column) - 1


def rotate(rows: Rows) -> Rows:
    """Rotate a map clockwise by 90°.

    >>> rotate(("ab", "cd"))
    ('ca', 'db')
    """
    return tuple("".join(column) for column in zip(*rows[::-1], strict=True))


def symmetries(rows: Rows) -> Iterator[Rows]:
    """Yield the eight rotations and reflections of a map."""
    for _ in range(4):
        yield rows
        yield tuple(row[::-1] for row in rows)
        rows = rotate(rows)


def canonical_text(rows: Sequence[str]) -> str:
    """Return one canonical text for a map and its rotations and reflections."""
    return "/".join(min(symmetries(tuple(rows))))


def find_cells(rows: Sequence[str], characters: str) -> frozenset[Cell]:
    """Return the cells with one out of several characters."""
    return frozenset((r, c) for r, row in enumerate(rows) for c, character in enumerate(row) if character in characters)
