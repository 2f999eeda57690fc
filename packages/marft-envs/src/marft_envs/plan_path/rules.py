"""Rules: mazes, positions, moves and rewards.

The rules and the published reward follow PettingLLMs' grid task (``PlanPathGridEnvState``), used for the results in
Stronger-MAS (arXiv:2510.11062).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft_envs.grids.maps import DIRECTIONS, Cell, adjacent_cell, compute_distances, find_cells

STEP_REWARD, ILLEGAL_REWARD, GOAL_REWARD, SHORTEST_REWARD, DISCOUNT = -0.01, -0.10, 1.00, 0.50, 0.99
UNPARSED_REWARD, MAX_MOVES, FAILURE_REWARD = -2.0, 10_000, -1.0


@dataclass(frozen=True)
class Maze:
    """A map: ``#`` is a wall, ``S`` the start, ``G`` the goal, and every other cell is free.

    >>> Maze(("S.", "#G")).distances
    {(1, 1): 0, (0, 1): 1, (0, 0): 2}
    """

    rows: tuple[str, ...]

    @cached_property
    def start(self) -> Cell:
        """Start cell."""
        return next(iter(find_cells(self.rows, "S")))

    @cached_property
    def goal(self) -> Cell:
        """Goal cell."""
        return next(iter(find_cells(self.rows, "G")))

    @cached_property
    def free_cells(self) -> frozenset[Cell]:
        """Cells without walls."""
        return find_cells(self.rows, ".SG")

    @cached_property
    def distances(self) -> Mapping[Cell, int]:
        """Distance to the goal, in moves, by cell; unreachable cells are left out."""
        return compute_distances(self.free_cells, self.goal)

    @property
    def min_moves(self) -> int:
        """Number of moves in a shortest path."""
        return self.distances[self.start]


@dataclass(frozen=True)
class MazeState:
    """Position in a maze, and the number of moves so far, including illegal moves."""

    maze: Maze
    position: Cell
    moves: int = 0

    @property
    def is_solved(self) -> bool:
        """True at the goal."""
        return self.position == self.maze.goal

    @property
    def dead_end_reason(self) -> str:
        """Always "": every move can be undone."""
        return ""

    @property
    def progress(self) -> float:
        """Completed fraction of the shortest path; 0 if the goal is farther away than at the start."""
        return max(0.0, 1.0 - self.maze.distances[self.position] / self.maze.min_moves)

    @property
    def legal_moves(self) -> tuple[str, ...]:
        """Legal directions."""
        return tuple(
            direction for direction in DIRECTIONS if adjacent_cell(self.position, direction) in self.maze.free_cells
        )

    def apply_move(self, direction: str) -> tuple[MazeState, str]:
        """Return the position after a move, and "" or an error text; a wall blocks the move."""
        target = adjacent_cell(self.position, direction)
        if target not in self.maze.free_cells:
            return replace(self, moves=self.moves + 1), f"{direction} is blocked."
        return replace(self, position=target, moves=self.moves + 1), ""


def published_reward(before: MazeState, after: MazeState, legal: bool) -> float:
    """Return the published reward for one move.

    It is the sum of three terms:

    - a cost: −0.01 for a legal move, −0.10 for an illegal move;
    - 0.99 Φ(s′) − Φ(s), where −Φ is the Manhattan distance to the goal;
    - 1 at the goal, plus 0.5 after a shortest path.
    """
    reward = (
        (STEP_REWARD if legal else ILLEGAL_REWARD) + DISCOUNT * -manhattan_distance(after) + manhattan_distance(before)
    )
    if after.is_solved:
        reward += GOAL_REWARD + (SHORTEST_REWARD if after.moves == after.maze.min_moves else 0.0)
    return reward


def manhattan_distance(state: MazeState) -> int:
    """Return the Manhattan distance to the goal."""
    return sum(
        abs(coordinate - goal_coordinate)
        for coordinate, goal_coordinate in zip(state.position, state.maze.goal, strict=True)
    )


def render_rows(state: MazeState) -> Sequence[str]:
    """Return the map with ``S`` at the current position."""
    rows = [list(row.replace("S", ".")) for row in state.maze.rows]
    rows[state.position[0]][state.position[1]] = "S"
    return ["".join(row) for row in rows]
