"""Distances on a grid."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from marft_envs.grids.maps import Cell
from marft_envs.grids.moves import DIRECTIONS, adjacent_cell


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
