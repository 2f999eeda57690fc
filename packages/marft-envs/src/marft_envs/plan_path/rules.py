"""The rules: a maze, where one stands in it, what a move makes of that, and what it pays.

Rules and numbers of the published reward are those of the grid task of PettingLLMs (``PlanPathGridEnvState``), whose
results are in Stronger-MAS (arXiv:2510.11062).
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
    """A map: ``#`` is a wall, ``S`` the start, ``G`` the goal, all else is free.

    >>> Maze(("S.", "#G")).away
    {(1, 1): 0, (0, 1): 1, (0, 0): 2}
    """

    rows: tuple[str, ...]

    @cached_property
    def start(self) -> Cell:
        return next(iter(find(self.rows, "S")))

    @cached_property
    def goal(self) -> Cell:
        return next(iter(find(self.rows, "G")))

    @cached_property
    def free(self) -> frozenset[Cell]:
        return find(self.rows, ".SG")

    @cached_property
    def away(self) -> Mapping[Cell, int]:
        """How far the goal is from every cell that it can be reached from."""
        return distances(self.free, self.goal)

    @property
    def fewest(self) -> int:
        """Moves from start to goal, at least."""
        return self.away[self.start]


@dataclass(frozen=True)
class Walk:
    """Where one stands in a maze, after how many moves; illegal ones count."""

    maze: Maze
    at: Cell
    moves: int = 0

    @property
    def solved(self) -> bool:
        return self.at == self.maze.goal

    @property
    def lost(self) -> str:
        """Never: whoever came somewhere can go back."""
        return ""

    @property
    def progress(self) -> float:
        """How much of the shortest way is done; 0 where the goal is farther away than at first."""
        return max(0.0, 1.0 - self.maze.away[self.at] / self.maze.fewest)

    @property
    def legal(self) -> tuple[str, ...]:
        """The ways that are open."""
        return tuple(way for way in WAYS if step(self.at, way) in self.maze.free)

    def moved(self, way: str) -> tuple[Walk, str]:
        """One move on, or where one was, since there is a wall."""
        there = step(self.at, way)
        if there not in self.maze.free:
            return replace(self, moves=self.moves + 1), f"{way} is blocked."
        return replace(self, at=there, moves=self.moves + 1), ""


def published(before: Walk, after: Walk, legal: bool) -> float:
    """The published reward of one move: a cost, 0.99 Φ(s′) − Φ(s) with Φ the negative Manhattan distance to the goal,
    and at the goal 1, with 0.5 more after a shortest way."""
    reward = (STEP if legal else ILLEGAL) + DISCOUNT * -manhattan(after) + manhattan(before)
    if after.solved:
        reward += GOAL + (SHORTEST if after.moves == after.maze.fewest else 0.0)
    return reward


def manhattan(walk: Walk) -> int:
    """Rows and columns between a walk and its goal."""
    return sum(abs(here - there) for here, there in zip(walk.at, walk.maze.goal, strict=True))


def drawn(walk: Walk) -> Sequence[str]:
    """The map as it is now: ``S`` where one stands."""
    rows = [list(row.replace("S", ".")) for row in walk.maze.rows]
    rows[walk.at[0]][walk.at[1]] = "S"
    return ["".join(row) for row in rows]
