"""Moves on a grid, and their parser for agents' text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from marft.agents.answers import extract_answer
from marft_envs.grids.maps import Cell

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
