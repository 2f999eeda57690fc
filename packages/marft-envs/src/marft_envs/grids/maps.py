"""Grids: cells, maps as character rows with their symmetries, distances, moves, and their parser for agents' text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from marft.agents.answers import extract_answer

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


DIRECTIONS: Mapping[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
MAX_MOVES = 1000  # maximum moves read from one text
DIRECTION_LETTERS = {way[0].upper(): way for way in DIRECTIONS}
FILLER_WORDS = {"and", "go", "move", "moves", "push", "then"}
WORD = re.compile(r"\w+")


def adjacent_cell(cell: Cell, direction: str) -> Cell:
    """Return the adjacent cell in a direction, even outside the map.

    >>> adjacent_cell((2, 2), "up")
    (1, 2)
    """
    row, column = DIRECTIONS[direction]
    return cell[0] + row, cell[1] + column


def describe_offset(start: Cell, target: Cell) -> str:
    """Describe the position of a cell relative to another, rows first.

    >>> describe_offset((2, 2), (1, 4)), describe_offset((2, 2), (2, 2))
    ('up 1 right 2', 'here')
    """
    rows, columns = target[0] - start[0], target[1] - start[1]
    parts = [f"{'down' if rows > 0 else 'up'} {abs(rows)}"] if rows else []
    parts += [f"{'right' if columns > 0 else 'left'} {abs(columns)}"] if columns else []
    return " ".join(parts) or "here"


def direction_between(start: Cell, target: Cell) -> str:
    """Return the direction from a cell to its neighbor."""
    return next(direction for direction in DIRECTIONS if adjacent_cell(start, direction) == target)


def parse_moves(text: str) -> list[str] | None:
    r"""Parse the moves in a text; return None for a text without moves or with further words.

    The moves are read from the last ``\boxed{}`` or ``<answer>`` tag. Without one, they follow the last ``####``,
    or else "the answer is". Otherwise the whole text is read. Moves may be words or letters, as a list or not.

    >>> parse_moves('First right, as it is nearer. #### ["R", "D"]'), parse_moves("go left"), parse_moves("RRD")
    (['right', 'down'], ['left'], ['right', 'right', 'down'])
    >>> parse_moves("left 3, up 5") is None
    True
    """
    moves: list[str] = []
    for word in WORD.findall(extract_answer(text.rpartition("####")[2])):
        if word.casefold() in DIRECTIONS:
            moves.append(word.casefold())
        elif set(word) <= set(DIRECTION_LETTERS) or word.upper() in DIRECTION_LETTERS:
            moves += [DIRECTION_LETTERS[letter] for letter in word.upper()]
        elif word.casefold() not in FILLER_WORDS:
            return None
    return moves[:MAX_MOVES] or None


def compute_distances(cells: Collection[Cell], goal: Cell) -> dict[Cell, int]:
    """Return the distance to the goal, in moves, for every cell with a path over ``cells``.

    >>> compute_distances({(0, 0), (0, 1), (2, 2)}, (0, 1))
    {(0, 1): 0, (0, 0): 1}
    """
    distance_by_cell = {goal: 0}
    queue = deque([goal])
    while queue:
        current = queue.popleft()
        for direction in DIRECTIONS:
            neighbor = adjacent_cell(current, direction)
            if neighbor in cells and neighbor not in distance_by_cell:
                distance_by_cell[neighbor] = distance_by_cell[current] + 1
                queue.append(neighbor)
    return distance_by_cell


def first_directions(cells: Collection[Cell], start: Cell, goal: Cell) -> list[str]:
    """Return the first directions of the shortest paths; empty at the goal or without a path."""
    distance_by_cell = compute_distances(cells, goal)
    if start not in distance_by_cell:
        return []
    return [
        direction
        for direction in DIRECTIONS
        if distance_by_cell.get(adjacent_cell(start, direction), distance_by_cell[start]) < distance_by_cell[start]
    ]
