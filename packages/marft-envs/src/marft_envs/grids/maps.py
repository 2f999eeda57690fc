"""Cells of a grid, and maps as rows of characters, the same from whichever side they are seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Cell = tuple[int, int]  # row and column from the top left, from 0
Rows = tuple[str, ...]  # of equal length


def named(cell: Cell) -> str:
    """A cell as agents read and write it: row and column from the top left, from 1.

    >>> named((0, 2))
    '1,3'
    """
    return f"{cell[0] + 1},{cell[1] + 1}"


def listed(cells: Iterable[Cell]) -> str:
    """Cells in reading order.

    >>> listed([(1, 0), (0, 2)])
    '1,3; 2,1'
    """
    return "; ".join(map(named, sorted(cells)))


def cell_in(text: str) -> Cell:
    """The cell that a name such as ``1,3`` stands for."""
    row, column = text.split(",")
    return int(row) - 1, int(column) - 1


def turned(rows: Rows) -> Rows:
    """A map turned by a quarter, clockwise.

    >>> turned(("ab", "cd"))
    ('ca', 'db')
    """
    return tuple("".join(column) for column in zip(*rows[::-1], strict=True))


def variants(rows: Rows) -> Iterator[Rows]:
    """A map from all eight sides: turned by quarters, and each of these mirrored."""
    for _ in range(4):
        yield rows
        yield tuple(row[::-1] for row in rows)
        rows = turned(rows)


def canonical(rows: Sequence[str]) -> str:
    """One text for a map and all that it looks like turned and mirrored."""
    return "/".join(min(variants(tuple(rows))))


def find(rows: Sequence[str], characters: str) -> frozenset[Cell]:
    """The cells of a map that hold one of these characters."""
    return frozenset((r, c) for r, row in enumerate(rows) for c, here in enumerate(row) if here in characters)
