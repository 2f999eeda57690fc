"""Solver and generator for sudokus with a unique solution."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from marft_envs.grids.maps import Cell, rotate
from marft_envs.sudoku.rules import BOXES, SudokuBoard, peers


def iterate_solutions(board: SudokuBoard, random: Random | None = None) -> Iterator[SudokuBoard]:
    """Yield the solutions of a board; the search fills the blank cell with the fewest possible values first.

    Args:
        board: the board.
        random: random generator that shuffles the tried values; None tries them in ascending order.
    """
    size, peers_by_cell = board.size, peers(board.size)
    values = {cell: board.value_at(cell) for cell in peers_by_cell}
    candidate_bits = _candidate_bits(board)

    def search_values() -> Iterator[SudokuBoard]:
        """Yield each completion of the current values."""
        if not candidate_bits:
            yield SudokuBoard(tuple(tuple(values[r, c] for c in range(size)) for r in range(size)))
            return
        cell = min(candidate_bits, key=lambda cell_option: candidate_bits[cell_option].bit_count())
        open_values = candidate_bits.pop(cell)
        values_tried = [value for value in range(1, size + 1) if open_values >> (value - 1) & 1]
        if random:
            random.shuffle(values_tried)
        for value in values_tried:
            bit = 1 << value >> 1
            changed = [peer for peer in peers_by_cell[cell] if candidate_bits.get(peer, 0) & bit]
            for peer in changed:
                candidate_bits[peer] &= ~bit
            values[cell] = value
            yield from search_values()
            for peer in changed:
                candidate_bits[peer] |= bit
        values[cell] = 0
        candidate_bits[cell] = open_values

    yield from search_values()


def has_unique_solution(board: SudokuBoard) -> bool:
    """Return True for a board with exactly one solution."""
    solution_iterator = iterate_solutions(board)
    return next(solution_iterator, None) is not None and next(solution_iterator, None) is None


def solvable_by_singles(board: SudokuBoard) -> bool:
    """Return True if repeatedly filling cells with a single possible value completes the board.

    No value is guessed, so the solution is unique.
    """
    peers_by_cell, candidate_bits = peers(board.size), _candidate_bits(board)
    single_cells = [cell for cell in candidate_bits if candidate_bits[cell].bit_count() == 1]
    while single_cells:
        cell = single_cells.pop()
        bit = candidate_bits.pop(cell)
        for peer in peers_by_cell[cell]:
            if candidate_bits.get(peer, 0) & bit:
                candidate_bits[peer] &= ~bit
                if not candidate_bits[peer]:
                    return False
                single_cells += [peer] if candidate_bits[peer].bit_count() == 1 else []
    return not candidate_bits


def _candidate_bits(board: SudokuBoard) -> dict[Cell, int]:
    """Return each blank cell's possible values as bits; bit 0 for value 1."""
    all_bits = (1 << board.size) - 1
    bits_by_cell = {}
    for cell in board.blank_cells:
        used_bits = 0
        for peer in peers(board.size)[cell]:
            used_bits |= 1 << board.value_at(peer) >> 1
        bits_by_cell[cell] = all_bits & ~used_bits
    return bits_by_cell


def generate_puzzle(size: int, blanks: int, singles: bool, random: Random) -> tuple[SudokuBoard, SudokuBoard] | None:
    """Generate a puzzle and its unique solution, or return None if the drawn solution allows no such puzzle.

    Args:
        size: number of rows.
        blanks: number of blank cells.
        singles: True to require a puzzle that ``solvable_by_singles`` can complete.
        random: random generator.
    """
    solution = next(iterate_solutions(SudokuBoard(((0,) * size,) * size), random))
    board, cells = solution, sorted(peers(size))
    random.shuffle(cells)
    for cell in cells:
        if len(board.blank_cells) == blanks:
            break
        board_without = board.with_value(cell, 0)
        if solvable_by_singles(board_without) or (not singles and has_unique_solution(board_without)):
            board = board_without
    return (board, solution) if len(board.blank_cells) == blanks else None


def canonical_text(board: SudokuBoard) -> str:
    """Return one canonical text for a puzzle and its rotations, reflections and digit permutations.

    If boxes are not square (6 × 6), only transformations that keep their shape count: half turns and reflections.
    """
    rows = tuple("".join(map(str, row)) for row in board.grid)
    box_rows, box_columns = BOXES[board.size]
    rotations = range(4) if box_rows == box_columns else (0, 2)
    forms = list[str]()
    for quarter in range(4):
        if quarter in rotations:
            forms += [_renumber_digits("".join(rows)), _renumber_digits("".join(row[::-1] for row in rows))]
        rows = rotate(rows)
    return min(forms)


def _renumber_digits(cells: str) -> str:
    """Renumber the digits in order of appearance."""
    names = {"0": "."}
    for digit in cells:
        names.setdefault(digit, str(len(names)))
    return "".join(names[digit] for digit in cells)
