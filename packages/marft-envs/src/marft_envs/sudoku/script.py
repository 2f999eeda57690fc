"""Who plays sudokus without a model.

A tool agent says what a blank can be, a planner fills that in, a solver does both. The habits of the weak: a tool agent
says that a cell is blank (large values tempt it), a planner fills in anything anywhere (low rows tempt it).
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
    """What the roles ``tool``, ``plan`` and ``solver`` say; any other one plays as a solver.

    Args:
        skill: share of turns that are played well.
        fills: what an answer is.
    """

    skill: float
    fills: Literal["one", "any"]

    def __call__(self, cue: Cue) -> str:
        """The next turn."""
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
        """A cell that only one value fits, as what is shown has it; else the first one. All, where all may be said."""
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
        """As the message says; where there is none, by the grid if that is known."""
        message = MESSAGE.search(cue.shown)
        told = [(cell_in(cell), int(value)) for cell, value in CAN_BE.findall(message[1])] if message else []
        if not message and ROW.search(cue.shown):
            told = self._known(cue, blanks)
        told = told if self.fills == "any" else told[:1]
        tempted = bool(told) and told[0][0][0] >= len(cue.task.data["solution"]) // 2
        return _written(told) if told and works(cue, self.skill, tempted) else _anything(cue, blanks)


def _blanks(shown: str) -> list[Cell]:
    """The blanks, as a list or the rows show them."""
    listed = BLANK.search(shown)
    if listed:
        return [cell_in(name) for name in listed[1].split("; ")]
    rows = [match[0].split() for match in ROW.finditer(shown)]
    return [(r, c) for r, row in enumerate(rows) for c, value in enumerate(row) if value == "."]


def _anything(cue: Cue, blanks: Sequence[Cell]) -> str:
    """Some value in some blank."""
    value = cue.random.randint(1, len(cue.task.data["solution"]))
    return _written([(cue.random.choice(blanks), value)])


def _written(fills: Sequence[Fill]) -> str:
    return "; ".join(f"{named(cell)} = {value}" for cell, value in fills)
