"""Distances on a grid."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from marft_envs.grids.maps import Cell
from marft_envs.grids.moves import WAYS, step


def distances(cells: Collection[Cell], goal: Cell) -> dict[Cell, int]:
    """Return the distance to the goal, in moves, for every cell with a path over ``cells``.

    >>> distances({(0, 0), (0, 1), (2, 2)}, (0, 1))
    {(0, 1): 0, (0, 0): 1}
    """
    away = {goal: 0}
    waiting = deque([goal])
    while waiting:
        here = waiting.popleft()
        for way in WAYS:
            there = step(here, way)
            if there in cells and there not in away:
                away[there] = away[here] + 1
                waiting.append(there)
    return away


def first_ways(cells: Collection[Cell], here: Cell, goal: Cell) -> list[str]:
    """Return the first directions of the shortest paths; empty at the goal or without a path."""
    away = distances(cells, goal)
    if here not in away:
        return []
    return [way for way in WAYS if away.get(step(here, way), away[here]) < away[here]]
