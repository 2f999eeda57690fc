"""Scripted policies for sudokus.

A tool agent names the value of a blank cell. A planner fills it in. A solver does both. Weak players make mistakes:
the tool agent states only that a cell is blank, most often at large values. The planner fills a random value into a
random blank cell, most often instead of fills in low rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marft.envs.scripts import Cue
from marft_envs.grids.maps import Cell, cell_in, named
from marft_envs.grids.slips import works
from marft_envs.sudoku.rules import Board, to_grid

SEES = re.compile(r"(\d,\d) sees ([\d ]+|nothing)")
BLANK = re.compile(r"^Blank: ([\d,; ]+)\.", re.MULTILINE)
ROW = re.compile(r"^[\d.]( [\d.])+$", re.MULTILINE)
MESSAGE = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
CAN_BE = re.compile(r"(\d,\d) can be (\d)")

Fill = tuple[Cell, int]


@dataclass(frozen=True)
class SudokuScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    Args:
        skill: fraction of well-played turns.
        fills: "one" for one fill per answer, "any" for several.
    """

    skill: float
    fills: Literal["one", "any"]

    def __call__(self, cue: Cue) -> str:
        """Return the agent's next text."""
        blanks = _blanks(cue.shown)
        if cue.role == "plan":
            return self._planned(cue, blanks)
        known = self._known(cue, blanks)
        well = works(cue, self.skill, tempted=known[0][1] > len(cue.task.data["solution"]) // 2)
        can_be = "; ".join(f"{named(cell)} can be {value}" for cell, value in known)
        if cue.role == "tool":
            return can_be if well else f"{named(cue.random.choice(blanks))} is blank."
        if not well:
            return _anything(cue, blanks)
        return f"{can_be}, so the answer is {_written(known)}."

    def _known(self, cue: Cue, blanks: Sequence[Cell]) -> list[Fill]:
        """Return a shown cell with only one possible value, or else the first blank cell.

        With any fills, all blank cells are returned.
        """
        solution = Board(to_grid(cue.task.data["solution"]))
        if self.fills == "any":
            return [(cell, solution.at(cell)) for cell in blanks]
        for name, values in SEES.findall(cue.shown):
            seen = () if values == "nothing" else tuple(map(int, values.split()))
            left = [value for value in range(1, solution.size + 1) if value not in seen]
            if len(left) == 1:
                return [(cell_in(name), left[0])]
        return [(blanks[0], solution.at(blanks[0]))]

    def _planned(self, cue: Cue, blanks: Sequence[Cell]) -> str:
        """Follow the message; without one, use a visible grid."""
        message = MESSAGE.search(cue.shown)
        told = [(cell_in(cell), int(value)) for cell, value in CAN_BE.findall(message[1])] if message else []
        if not message and ROW.search(cue.shown):
            told = self._known(cue, blanks)
        told = told if self.fills == "any" else told[:1]
        tempted = bool(told) and told[0][0][0] >= len(cue.task.data["solution"]) // 2
        return _written(told) if told and works(cue, self.skill, tempted) else _anything(cue, blanks)


def _blanks(shown: str) -> list[Cell]:
    """Parse the blank cells from the shown list or rows."""
    listed = BLANK.search(shown)
    if listed:
        return [cell_in(name) for name in listed[1].split("; ")]
    rows = [match[0].split() for match in ROW.finditer(shown)]
    return [(r, c) for r, row in enumerate(rows) for c, value in enumerate(row) if value == "."]


def _anything(cue: Cue, blanks: Sequence[Cell]) -> str:
    """Return a random value for a random blank cell."""
    value = cue.random.randint(1, len(cue.task.data["solution"]))
    return _written([(cue.random.choice(blanks), value)])


def _written(fills: Sequence[Fill]) -> str:
    return "; ".join(f"{named(cell)} = {value}" for cell, value in fills)
