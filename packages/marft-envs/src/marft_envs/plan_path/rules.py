"""Rules: mazes, positions, moves and rewards.

The rules and the published reward follow PettingLLMs' grid task (``PlanPathGridEnvState``), used for the results in
Stronger-MAS (arXiv:2510.11062).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft_envs.grids.maps import Cell, find
from marft_envs.grids.moves import WAYS, step
from marft_envs.grids.search import distances

STEP, ILLEGAL, GOAL, SHORTEST, DISCOUNT = -0.01, -0.10, 1.00, 0.50, 0.99
UNREAD, MOST_MOVES, FAILURE = -2.0, 10_000, -1.0


@dataclass(frozen=True)
class Maze:
    """A map: ``#`` is a wall, ``S`` the start, ``G`` the goal, and every other cell is free.

    >>> Maze(("S.", "#G")).away
    {(1, 1): 0, (0, 1): 1, (0, 0): 2}
    """

    rows: tuple[str, ...]

    @cached_property
    def start(self) -> Cell:
        """Start cell."""
        return next(iter(find(self.rows, "S")))

    @cached_property
    def goal(self) -> Cell:
        """Goal cell."""
        return next(iter(find(self.rows, "G")))

    @cached_property
    def free(self) -> frozenset[Cell]:
        """Cells without walls."""
        return find(self.rows, ".SG")

    @cached_property
    def away(self) -> Mapping[Cell, int]:
        """Distance to the goal, in moves, by cell; unreachable cells are left out."""
        return distances(self.free, self.goal)

    @property
    def fewest(self) -> int:
        """Number of moves in a shortest path."""
        return self.away[self.start]


@dataclass(frozen=True)
class Walk:
    """Position in a maze, and the number of moves so far, including illegal moves."""

    maze: Maze
    at: Cell
    moves: int = 0

    @property
    def solved(self) -> bool:
        """True at the goal."""
        return self.at == self.maze.goal

    @property
    def lost(self) -> str:
        """Always "": every move can be undone."""
        return ""

    @property
    def progress(self) -> float:
        """Completed fraction of the shortest path; 0 if the goal is farther away than at the start."""
        return max(0.0, 1.0 - self.maze.away[self.at] / self.maze.fewest)

    @property
    def legal(self) -> tuple[str, ...]:
        """Legal directions."""
        return tuple(way for way in WAYS if step(self.at, way) in self.maze.free)

    def moved(self, way: str) -> tuple[Walk, str]:
        """Return the position after a move, and "" or an error text; a wall blocks the move."""
        there = step(self.at, way)
        if there not in self.maze.free:
            return replace(self, moves=self.moves + 1), f"{way} is blocked."
        return replace(self, at=there, moves=self.moves + 1), ""


def published(before: Walk, after: Walk, legal: bool) -> float:
    """Return the published reward for one move.

    It is the sum of three terms:

    - a cost: −0.01 for a legal move, −0.10 for an illegal move;
    - 0.99 Φ(s′) − Φ(s), where −Φ is the Manhattan distance to the goal;
    - 1 at the goal, plus 0.5 after a shortest path.
    """
    reward = (STEP if legal else ILLEGAL) + DISCOUNT * -manhattan(after) + manhattan(before)
    if after.solved:
        reward += GOAL + (SHORTEST if after.moves == after.maze.fewest else 0.0)
    return reward


def manhattan(walk: Walk) -> int:
    """Return the Manhattan distance to the goal."""
    return sum(abs(here - there) for here, there in zip(walk.at, walk.maze.goal, strict=True))


def drawn(walk: Walk) -> Sequence[str]:
    """Return the map with ``S`` at the current position."""
    rows = [list(row.replace("S", ".")) for row in walk.maze.rows]
    rows[walk.at[0]][walk.at[1]] = "S"
    return ["".join(row) for row in rows]
