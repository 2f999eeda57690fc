"""Moves on a grid, and their parser for agents' text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from marft.agents.answers import stated_answer
from marft_envs.grids.maps import Cell

WAYS: Mapping[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
MOST_MOVES = 1000  # maximum moves read from one text
LETTERS = {way[0].upper(): way for way in WAYS}
FILLING = {"and", "go", "move", "moves", "push", "then"}
WORD = re.compile(r"\w+")


def step(cell: Cell, way: str) -> Cell:
    """Return the adjacent cell in a direction, even outside the map.

    >>> step((2, 2), "up")
    (1, 2)
    """
    row, column = WAYS[way]
    return cell[0] + row, cell[1] + column


def offset(here: Cell, there: Cell) -> str:
    """Describe the position of a cell relative to another, rows first.

    >>> offset((2, 2), (1, 4)), offset((2, 2), (2, 2))
    ('up 1 right 2', 'here')
    """
    rows, columns = there[0] - here[0], there[1] - here[1]
    parts = [f"{'down' if rows > 0 else 'up'} {abs(rows)}"] if rows else []
    parts += [f"{'right' if columns > 0 else 'left'} {abs(columns)}"] if columns else []
    return " ".join(parts) or "here"


def way_between(here: Cell, there: Cell) -> str:
    """Return the direction from a cell to its neighbor."""
    return next(way for way in WAYS if step(here, way) == there)


def moves_in(text: str) -> list[str] | None:
    r"""Parse the moves in a text; return None for a text without moves or with further words.

    The moves are read from the last ``\boxed{}`` or ``<answer>`` tag. Without one, they follow the last ``####``,
    or else "the answer is". Otherwise the whole text is read. Moves may be words or letters, as a list or not.

    >>> moves_in('First right, as it is nearer. #### ["R", "D"]'), moves_in("go left"), moves_in("RRD")
    (['right', 'down'], ['left'], ['right', 'right', 'down'])
    >>> moves_in("left 3, up 5") is None
    True
    """
    found: list[str] = []
    for word in WORD.findall(stated_answer(text.rpartition("####")[2])):
        if word.casefold() in WAYS:
            found.append(word.casefold())
        elif set(word) <= set(LETTERS) or word.upper() in LETTERS:
            found += [LETTERS[letter] for letter in word.upper()]
        elif word.casefold() not in FILLING:
            return None
    return found[:MOST_MOVES] or None
