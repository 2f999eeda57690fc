"""Rules: boards, possible values of a cell, fills, and violations in a whole grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from marft_envs.grids.maps import Cell, named

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box, by size
Grid = tuple[tuple[int, ...], ...]  # 0 is a blank cell


@cache
def peers(size: int) -> dict[Cell, frozenset[Cell]]:
    """Return each cell's peers: the remaining cells in its row, column and box."""
    rows, columns = BOXES[size]
    cells = [(r, c) for r in range(size) for c in range(size)]
    return {
        (r, c): frozenset(
            (y, x) for y, x in cells if (y == r or x == c or (y // rows, x // columns) == (r // rows, c // columns))
        ) - {(r, c)}
        for r, c in cells
    }  # fmt: skip


@dataclass(frozen=True)
class Board:
    """A partly filled grid.

    >>> board = Board(((1, 2, 3, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 4)))
    >>> board.fits((0, 3)), board.placed((0, 3), 4)[1]
    ((), '1,4 cannot be 4: 4,4 is.')
    """

    grid: Grid

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.grid)

    @property
    def blanks(self) -> list[Cell]:
        """Blank cells, in reading order."""
        return [(r, c) for r, row in enumerate(self.grid) for c, value in enumerate(row) if not value]

    def at(self, cell: Cell) -> int:
        """Return a cell's value; 0 if blank."""
        return self.grid[cell[0]][cell[1]]

    def seen(self, cell: Cell) -> tuple[int, ...]:
        """Return the values in a cell's row, column and box, in ascending order."""
        return tuple(sorted({self.at(peer) for peer in peers(self.size)[cell]} - {0}))

    def fits(self, cell: Cell) -> tuple[int, ...]:
        """Return the possible values of a cell, in ascending order."""
        seen = self.seen(cell)
        return tuple(value for value in range(1, self.size + 1) if value not in seen)

    def filled(self, cell: Cell, value: int) -> Board:
        """Return the board with a value in a cell, without checks."""
        rows = [list(row) for row in self.grid]
        rows[cell[0]][cell[1]] = value
        return Board(tuple(map(tuple, rows)))

    def placed(self, cell: Cell, value: int) -> tuple[Board, str]:
        """Return the board after a fill, and an error text; an invalid fill leaves the board unchanged.

        Filled cells cannot be changed.
        """
        if cell not in peers(self.size):
            return self, f"There is no cell {named(cell)}."
        if not 1 <= value <= self.size:
            return self, f"{named(cell)} cannot be {value}: values are 1 to {self.size}."
        if self.at(cell):
            return self, f"{named(cell)} is {self.at(cell)} already."
        rival = next((peer for peer in sorted(peers(self.size)[cell]) if self.at(peer) == value), None)
        if rival is not None:
            return self, f"{named(cell)} cannot be {value}: {named(rival)} is."
        return self.filled(cell, value), ""

    @property
    def stuck(self) -> str:
        """Reason why the board cannot be completed, if a blank cell has no possible value; otherwise ""."""
        cell = next((cell for cell in self.blanks if not self.fits(cell)), None)
        return f"Nothing fits {named(cell)} any more." if cell else ""


def wrong_with(grid: Grid, givens: Board) -> str:
    """Return the reason why a whole grid does not solve a puzzle; "" for a solution."""
    board = Board(grid)
    for cell in sorted(peers(givens.size)):
        value, given = board.at(cell), givens.at(cell)
        if not 1 <= value <= givens.size:
            return f"{named(cell)} cannot be {value}: values are 1 to {givens.size}."
        if given and value != given:
            return f"{named(cell)} is given as {given}, not {value}."
    for cell in sorted(peers(givens.size)):
        rival = next((peer for peer in sorted(peers(givens.size)[cell]) if board.at(peer) == board.at(cell)), None)
        if rival:
            return f"{named(cell)} and {named(rival)} are both {board.at(cell)}."
    return ""


def drawn(board: Board) -> Iterator[str]:
    """Yield the rows as text: ``1 . 3 4``."""
    return (" ".join(str(value or ".") for value in row) for row in board.grid)


def to_grid(rows: Sequence[Sequence[int]]) -> Grid:
    """Convert rows to a grid."""
    return tuple(tuple(row) for row in rows)
