"""Who plays ways through a maze without a model.

A tool agent measures the open ways (or works out the whole way), a planner goes where that says the goal is nearest, a
solver does both. The habits of the weak, at crossings above all: a tool agent says where it stands, a planner goes
anywhere.
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
    """What the roles ``tool``, ``plan`` and ``solver`` say; any other one plays as a solver.

    Args:
        skill: share of turns that are played well.
        moves: what an answer is.
    """

    skill: float
    moves: Literal["one", "list"]

    def __call__(self, cue: Cue) -> str:
        """The next turn."""
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
        """Which open ways lead nearer to the goal, or the whole way."""
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
        """Where that says the goal is nearest."""
        nearer = [way for way, measure in MEASURE.findall(told) if measure == "nearer"]
        return (moves_in(told) or []) if self.moves == "list" else nearer[:1]

    def _planned(self, cue: Cue, here: Cell, ways: list[str]) -> str:
        """As the message says; where there is none, by the map if that is known, else anywhere."""
        message = MESSAGE.search(cue.shown)
        if not message and "Goal" in cue.shown:
            return ", ".join(self._best(self._measured(cue, here, ways)))
        best = self._best(message[1]) if message else []
        return ", ".join(best) if best else _anywhere(cue, ways)


def _measure(maze: Maze, here: Cell, there: Cell) -> str:
    return "nearer" if maze.away[there] < maze.away[here] else "farther"


def _anywhere(cue: Cue, ways: list[str]) -> str:
    """Some way that may well be blocked, or one of those to choose from."""
    return cue.random.choice(cue.options or ways)
