"""Scripted policies for mazes.

A tool agent measures the open directions, or plans the whole path. A planner moves in a direction measured as
nearer. A solver does both. Weak players make mistakes, above all at crossings: the tool agent states only its
position, and the planner moves in a random direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marft.envs.scripts import Cue
from marft_envs.grids.maps import Cell, cell_in, named
from marft_envs.grids.moves import WAYS, moves_in, step, way_between
from marft_envs.grids.slips import works
from marft_envs.plan_path.rules import Maze

AT = re.compile(r"At (\d+,\d+)\. Open: ([^.]*)\.")
MESSAGE = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
MEASURE = re.compile(rf"({'|'.join(WAYS)}) (nearer|farther)")


@dataclass(frozen=True)
class PathScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    Args:
        skill: fraction of well-played turns.
        moves: "one" for one move per answer, "list" for a list.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: Cue) -> str:
        """Return the agent's next text."""
        found = AT.search(cue.shown)
        if not found:
            return "left"
        here = cell_in(found[1])
        ways = found[2].split(", ")
        well = works(cue, self.skill, tempted=len(ways) > 2)
        if cue.role == "tool":
            return self._measured(cue, here, ways) if well else f"At {named(here)}."
        if not well:
            return _anywhere(cue, ways)
        if cue.role == "plan":
            return self._planned(cue, here, ways)
        told = self._measured(cue, here, ways)
        best = self._best(told)
        return ", ".join(best) if cue.options or self.moves == "list" else f"{told}, so the answer is {best[0]}."

    def _measured(self, cue: Cue, here: Cell, ways: list[str]) -> str:
        """Return the measured directions, or the whole path for lists."""
        maze = Maze(tuple(cue.task.data["map"]))
        if self.moves == "one":
            return ", ".join(f"{way} {_measure(maze, here, step(here, way))}" for way in ways)
        whole = list[str]()
        while here != maze.goal:
            there = min((step(here, way) for way in WAYS), key=lambda cell: maze.away.get(cell, maze.away[here]))
            whole.append(way_between(here, there))
            here = there
        return ", ".join(whole)

    def _best(self, told: str) -> list[str]:
        """Return the first direction measured as nearer, or the stated moves for lists."""
        nearer = [way for way, measure in MEASURE.findall(told) if measure == "nearer"]
        return (moves_in(told) or []) if self.moves == "list" else nearer[:1]

    def _planned(self, cue: Cue, here: Cell, ways: list[str]) -> str:
        """Follow the message; without one, use a visible map, or else move at random."""
        message = MESSAGE.search(cue.shown)
        if not message and "Goal" in cue.shown:
            return ", ".join(self._best(self._measured(cue, here, ways)))
        best = self._best(message[1]) if message else []
        return ", ".join(best) if best else _anywhere(cue, ways)


def _measure(maze: Maze, here: Cell, there: Cell) -> str:
    return "nearer" if maze.away[there] < maze.away[here] else "farther"


def _anywhere(cue: Cue, ways: list[str]) -> str:
    """Return a random option, or a random open direction."""
    return cue.random.choice(cue.options or ways)
