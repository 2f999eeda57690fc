"""Grid cells, and maps as character rows with their symmetries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Cell = tuple[int, int]  # row and column from the top left, starting at 0
Rows = tuple[str, ...]  # equal lengths


def named(cell: Cell) -> str:
    """Format a cell for agents: row and column from the top left, starting at 1.

    >>> named((0, 2))
    '1,3'
    """
    return f"{cell[0] + 1},{cell[1] + 1}"


def listed(cells: Iterable[Cell]) -> str:
    """Format cells in reading order.

    >>> listed([(1, 0), (0, 2)])
    '1,3; 2,1'
    """
    return "; ".join(map(named, sorted(cells)))


def cell_in(text: str) -> Cell:
    """Parse a cell name, for example ``1,3``."""
    row, column = text.split(",")
    return int(row) - 1, int(column) - 1


def turned(rows: Rows) -> Rows:
    """Rotate a map clockwise by 90°.

    >>> turned(("ab", "cd"))
    ('ca', 'db')
    """
    return tuple("".join(column) for column in zip(*rows[::-1], strict=True))


def variants(rows: Rows) -> Iterator[Rows]:
    """Yield the eight rotations and reflections of a map."""
    for _ in range(4):
        yield rows
        yield tuple(row[::-1] for row in rows)
        rows = turned(rows)


def canonical(rows: Sequence[str]) -> str:
    """Return one canonical text for a map and its rotations and reflections."""
    return "/".join(min(variants(tuple(rows))))


def find(rows: Sequence[str], characters: str) -> frozenset[Cell]:
    """Return the cells with one out of several characters."""
    return frozenset((r, c) for r, row in enumerate(rows) for c, here in enumerate(row) if here in characters)
