"""Scripted policies for mazes.

A tool agent measures the open directions, or plans the whole path. A planner moves in a direction measured as
nearer. A solver does both. Weak players make mistakes, above all at crossings: the tool agent states only its
position, and the planner moves in a random direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marft.envs.scripted_policy import PolicyInput
from marft_envs.grids.maps import Cell, format_cell, parse_cell
from marft_envs.grids.moves import DIRECTIONS, adjacent_cell, direction_between, parse_moves
from marft_envs.grids.skill import plays_well
from marft_envs.plan_path.rules import Maze

POSITION_PATTERN = re.compile(r"At (\d+,\d+)\. Open: ([^.]*)\.")
MESSAGE_PATTERN = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
MEASURE_PATTERN = re.compile(rf"({'|'.join(DIRECTIONS)}) (nearer|farther)")


@dataclass(frozen=True)
class PlanPathScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    Args:
        skill: fraction of well-played turns.
        moves: "one" for one move per answer, "list" for a list.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's next text."""
        match = POSITION_PATTERN.search(cue.last_message)
        if not match:
            return "left"
        current = parse_cell(match[1])
        directions = match[2].split(", ")
        is_good = plays_well(cue, self.skill, has_mistake=len(directions) > 2)
        if cue.role == "tool":
            return self._measure_directions(cue, current, directions) if is_good else f"At {format_cell(current)}."
        if not is_good:
            return _random_move(cue, directions)
        if cue.role == "plan":
            return self._follow_message(cue, current, directions)
        advice = self._measure_directions(cue, current, directions)
        best_moves = self._best_moves(advice)
        return (
            ", ".join(best_moves)
            if cue.options or self.moves == "list"
            else f"{advice}, so the answer is {best_moves[0]}."
        )

    def _measure_directions(self, cue: PolicyInput, current: Cell, directions: list[str]) -> str:
        """Return the measured directions, or the whole path for lists."""
        maze = Maze(tuple(cue.task.data["map"]))
        if self.moves == "one":
            return ", ".join(
                f"{direction} {_compare_distance(maze, current, adjacent_cell(current, direction))}"
                for direction in directions
            )
        path = list[str]()
        while current != maze.goal:
            nearest = min(
                (adjacent_cell(current, direction) for direction in DIRECTIONS),
                key=lambda cell: maze.distances.get(cell, maze.distances[current]),
            )
            path.append(direction_between(current, nearest))
            current = nearest
        return ", ".join(path)

    def _best_moves(self, advice: str) -> list[str]:
        """Return the first direction measured as nearer, or the stated moves for lists."""
        nearer = [direction for direction, measure in MEASURE_PATTERN.findall(advice) if measure == "nearer"]
        return (parse_moves(advice) or []) if self.moves == "list" else nearer[:1]

    def _follow_message(self, cue: PolicyInput, current: Cell, directions: list[str]) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        message = MESSAGE_PATTERN.search(cue.last_message)
        if not message and "Goal" in cue.last_message:
            return ", ".join(self._best_moves(self._measure_directions(cue, current, directions)))
        best_moves = self._best_moves(message[1]) if message else []
        return ", ".join(best_moves) if best_moves else _random_move(cue, directions)


def _compare_distance(maze: Maze, current: Cell, neighbor: Cell) -> str:
    return "nearer" if maze.distances[neighbor] < maze.distances[current] else "farther"


def _random_move(cue: PolicyInput, directions: list[str]) -> str:
    """Return a random option, or a random open direction."""
    return cue.random.choice(cue.options or directions)
