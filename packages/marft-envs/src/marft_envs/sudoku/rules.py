"""Sudoku rules: boards, possible values of a cell, fills and their parser, and violations in a whole grid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from marft.agents.answers import extract_answer
from marft_envs.grids.maps import Cell, format_cell

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
        )
        - {(r, c)}
        for r, c in cells
    }


@dataclass(frozen=True)
class SudokuBoard:
    """A partly filled grid.

    >>> board = SudokuBoard(((1, 2, 3, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 4)))
    >>> board.candidates((0, 3)), board.place_value((0, 3), 4)[1]
    ((), '1,4 cannot be 4: 4,4 is.')
    """

    grid: Grid

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.grid)

    @property
    def blank_cells(self) -> list[Cell]:
        """Blank cells, in reading order."""
        return [(r, c) for r, row in enumerate(self.grid) for c, value in enumerate(row) if not value]

    def value_at(self, cell: Cell) -> int:
        """Return a cell's value; 0 if blank."""
        return self.grid[cell[0]][cell[1]]

    def peer_values(self, cell: Cell) -> tuple[int, ...]:
        """Return the values in a cell's row, column and box, in ascending order."""
        return tuple(sorted({self.value_at(peer) for peer in peers(self.size)[cell]} - {0}))

    def candidates(self, cell: Cell) -> tuple[int, ...]:
        """Return the possible values of a cell, in ascending order."""
        used_values = self.peer_values(cell)
        return tuple(value for value in range(1, self.size + 1) if value not in used_values)

    def with_value(self, cell: Cell, value: int) -> SudokuBoard:
        """Return the board with a value in a cell, without checks."""
        rows = [list(row) for row in self.grid]
        rows[cell[0]][cell[1]] = value
        return SudokuBoard(tuple(map(tuple, rows)))

    def place_value(self, cell: Cell, value: int) -> tuple[SudokuBoard, str]:
        """Return the board after a fill, and an error text; an invalid fill leaves the board unchanged.

        Filled cells cannot be changed.
        """
        if cell not in peers(self.size):
            return self, f"There is no cell {format_cell(cell)}."
        if not 1 <= value <= self.size:
            return self, f"{format_cell(cell)} cannot be {value}: values are 1 to {self.size}."
        if self.value_at(cell):
            return self, f"{format_cell(cell)} is {self.value_at(cell)} already."
        conflict = next((peer for peer in sorted(peers(self.size)[cell]) if self.value_at(peer) == value), None)
        if conflict is not None:
            return self, f"{format_cell(cell)} cannot be {value}: {format_cell(conflict)} is."
        return self.with_value(cell, value), ""

    @property
    def dead_end_reason(self) -> str:
        """Reason why the board cannot be completed, if a blank cell has no possible value; otherwise ""."""
        cell = next((cell for cell in self.blank_cells if not self.candidates(cell)), None)
        return f"Nothing fits {format_cell(cell)} any more." if cell else ""


def find_error(grid: Grid, givens: SudokuBoard) -> str:
    """Return the reason why a whole grid does not solve a puzzle; "" for a solution."""
    board = SudokuBoard(grid)
    for cell in sorted(peers(givens.size)):
        value, given_value = board.value_at(cell), givens.value_at(cell)
        if not 1 <= value <= givens.size:
            return f"{format_cell(cell)} cannot be {value}: values are 1 to {givens.size}."
        if given_value and value != given_value:
            return f"{format_cell(cell)} is given as {given_value}, not {value}."
    for cell in sorted(peers(givens.size)):
        conflict = next(
            (peer for peer in sorted(peers(givens.size)[cell]) if board.value_at(peer) == board.value_at(cell)), None
        )
        if conflict:
            return f"{format_cell(cell)} and {format_cell(conflict)} are both {board.value_at(cell)}."
    return ""


def render_rows(board: SudokuBoard) -> Iterator[str]:
    """Yield the rows as text: ``1 . 3 4``."""
    return (" ".join(str(value or ".") for value in row) for row in board.grid)


def to_grid(rows: Sequence[Sequence[int]]) -> Grid:
    """Convert rows to a grid."""
    return tuple(tuple(row) for row in rows)


ANSWER_PATTERN = re.compile(r"[\d\s,;:=|()\[\].+-]*")
GROUP_SEPARATOR = re.compile(r"[\n;)\]]+")
NUMBER = re.compile(r"\d+")
NOT_WHOLE_NUMBERS = re.compile(r"(?<!\d)[+-]\d|=\s*[+.=-]|\d[ \t]*[+.-][ \t]*\d")  # negative number, fraction or sum
MAX_ANSWER = 4000  # maximum characters read from an answer

Fills = list[tuple[Cell, int]]


def parse_answer(text: str, size: int) -> Fills | Grid | None:
    r"""Parse the fills or the whole grid in a text; None if it contains neither, or further text.

    The answer is read from the last ``\boxed{}`` or ``<answer>`` tag. Without one, it follows the last ``####``, or
    else "the answer is". Otherwise the whole text is read. Rows, columns and values start at 1.

    >>> parse_answer("1,2 = 4", 4), parse_answer("Look: #### [[1,2,4],[3,4,1]]", 4)
    ([((0, 1), 4)], [((0, 1), 4), ((2, 3), 1)])
    >>> parse_answer("1234\n3412\n2143\n4321", 4)
    ((1, 2, 3, 4), (3, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))
    >>> parse_answer("1,2 can be 4", 4) is None
    True
    """
    answer_text = extract_answer(text.rpartition("####")[2])[:MAX_ANSWER]
    if not ANSWER_PATTERN.fullmatch(answer_text) or NOT_WHOLE_NUMBERS.search(answer_text):
        return None
    groups = [numbers for part in GROUP_SEPARATOR.split(answer_text) if (numbers := _row_numbers(part, size))]
    if len(groups) == size and all(len(group) == size for group in groups):
        return tuple(map(tuple, groups))
    if groups and all(len(group) == 3 for group in groups):
        return [((row - 1, column - 1), value) for row, column, value in groups]
    return None


def _row_numbers(part: str, size: int) -> list[int]:
    """Return the numbers in a row; one number with ``size`` digits counts as a row."""
    numbers = NUMBER.findall(part)
    if len(numbers) == 1 and len(numbers[0]) == size:
        return [int(digit) for digit in numbers[0]]
    return [int(number[:9]) for number in numbers]
