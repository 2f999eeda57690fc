"""Solver and generator for sudokus with a unique solution."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from marft_envs.grids.maps import Cell, turned
from marft_envs.sudoku.rules import BOXES, Board, peers


def solutions(board: Board, random: Random | None = None) -> Iterator[Board]:
    """Yield the solutions of a board; the search fills the blank cell with the fewest possible values first.

    Args:
        board: the board.
        random: random generator that shuffles the tried values; None tries them in ascending order.
    """
    size, around = board.size, peers(board.size)
    values = {cell: board.at(cell) for cell in around}
    left = _left(board)

    def search() -> Iterator[Board]:
        """Yield each completion of the current values."""
        if not left:
            yield Board(tuple(tuple(values[r, c] for c in range(size)) for r in range(size)))
            return
        cell = min(left, key=lambda blank: left[blank].bit_count())
        open_values = left.pop(cell)
        tried = [value for value in range(1, size + 1) if open_values >> (value - 1) & 1]
        if random:
            random.shuffle(tried)
        for value in tried:
            bit = 1 << value >> 1
            changed = [peer for peer in around[cell] if left.get(peer, 0) & bit]
            for peer in changed:
                left[peer] &= ~bit
            values[cell] = value
            yield from search()
            for peer in changed:
                left[peer] |= bit
        values[cell] = 0
        left[cell] = open_values

    yield from search()


def unique(board: Board) -> bool:
    """Return True for a board with exactly one solution."""
    found = solutions(board)
    return next(found, None) is not None and next(found, None) is None


def by_singles(board: Board) -> bool:
    """Return True if repeatedly filling cells with a single possible value completes the board.

    No value is guessed, so the solution is unique.
    """
    around, left = peers(board.size), _left(board)
    singles = [cell for cell in left if left[cell].bit_count() == 1]
    while singles:
        cell = singles.pop()
        bit = left.pop(cell)
        for peer in around[cell]:
            if left.get(peer, 0) & bit:
                left[peer] &= ~bit
                if not left[peer]:
                    return False
                singles += [peer] if left[peer].bit_count() == 1 else []
    return not left


def _left(board: Board) -> dict[Cell, int]:
    """Return each blank cell's possible values as bits; bit 0 for value 1."""
    every = (1 << board.size) - 1
    left = {}
    for cell in board.blanks:
        taken = 0
        for peer in peers(board.size)[cell]:
            taken |= 1 << board.at(peer) >> 1
        left[cell] = every & ~taken
    return left


def puzzle(size: int, blanks: int, singles: bool, random: Random) -> tuple[Board, Board] | None:
    """Generate a puzzle and its unique solution, or return None if the drawn solution allows no such puzzle.

    Args:
        size: number of rows.
        blanks: number of blank cells.
        singles: True to require a puzzle that ``by_singles`` can complete.
        random: random generator.
    """
    solution = next(solutions(Board(((0,) * size,) * size), random))
    board, cells = solution, sorted(peers(size))
    random.shuffle(cells)
    for cell in cells:
        if len(board.blanks) == blanks:
            break
        emptied = board.filled(cell, 0)
        if by_singles(emptied) or (not singles and unique(emptied)):
            board = emptied
    return (board, solution) if len(board.blanks) == blanks else None


def canonical(board: Board) -> str:
    """Return one canonical text for a puzzle and its rotations, reflections and digit permutations.

    If boxes are not square (6 × 6), only transformations that keep their shape count: half turns and reflections.
    """
    rows = tuple("".join(map(str, row)) for row in board.grid)
    tall, wide = BOXES[board.size]
    turns = range(4) if tall == wide else (0, 2)
    forms = list[str]()
    for quarter in range(4):
        if quarter in turns:
            forms += [_renamed("".join(rows)), _renamed("".join(row[::-1] for row in rows))]
        rows = turned(rows)
    return min(forms)


def _renamed(cells: str) -> str:
    """Renumber the digits in order of appearance."""
    names = {"0": "."}
    for digit in cells:
        names.setdefault(digit, str(len(names)))
    return "".join(names[digit] for digit in cells)
