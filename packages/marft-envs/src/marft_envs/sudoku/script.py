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

from marft.envs.scripted_policy import PolicyInput
from marft_envs.grids.maps import Cell, format_cell, parse_cell
from marft_envs.grids.skill import plays_well
from marft_envs.sudoku.rules import SudokuBoard, to_grid

PEER_PATTERN = re.compile(r"(\d,\d) sees ([\d ]+|nothing)")
BLANK_PATTERN = re.compile(r"^Blank: ([\d,; ]+)\.", re.MULTILINE)
ROW_PATTERN = re.compile(r"^[\d.]( [\d.])+$", re.MULTILINE)
MESSAGE_PATTERN = re.compile(r"Message from \w+:\n(.*)", re.DOTALL)
FILL_PATTERN = re.compile(r"(\d,\d) can be (\d)")

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

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's next text."""
        blanks = _parse_blanks(cue.last_message)
        if cue.role == "plan":
            return self._follow_message(cue, blanks)
        known_fills = self._known_fills(cue, blanks)
        is_good = plays_well(cue, self.skill, has_mistake=known_fills[0][1] > len(cue.task.data["solution"]) // 2)
        fill_text = "; ".join(f"{format_cell(cell)} can be {value}" for cell, value in known_fills)
        if cue.role == "tool":
            return fill_text if is_good else f"{format_cell(cue.random.choice(blanks))} is blank."
        if not is_good:
            return _random_fill(cue, blanks)
        return f"{fill_text}, so the answer is {_format_fills(known_fills)}."

    def _known_fills(self, cue: PolicyInput, blanks: Sequence[Cell]) -> list[Fill]:
        """Return a shown cell with only one possible value, or else the first blank cell.

        With any fills, all blank cells are returned.
        """
        solution = SudokuBoard(to_grid(cue.task.data["solution"]))
        if self.fills == "any":
            return [(cell, solution.value_at(cell)) for cell in blanks]
        for name, values in PEER_PATTERN.findall(cue.last_message):
            peer_values = () if values == "nothing" else tuple(map(int, values.split()))
            candidates = [value for value in range(1, solution.size + 1) if value not in peer_values]
            if len(candidates) == 1:
                return [(parse_cell(name), candidates[0])]
        return [(blanks[0], solution.value_at(blanks[0]))]

    def _follow_message(self, cue: PolicyInput, blanks: Sequence[Cell]) -> str:
        """Follow the message; without one, use a visible grid."""
        message = MESSAGE_PATTERN.search(cue.last_message)
        fills = [(parse_cell(cell), int(value)) for cell, value in FILL_PATTERN.findall(message[1])] if message else []
        if not message and ROW_PATTERN.search(cue.last_message):
            fills = self._known_fills(cue, blanks)
        fills = fills if self.fills == "any" else fills[:1]
        tempted = bool(fills) and fills[0][0][0] >= len(cue.task.data["solution"]) // 2
        return _format_fills(fills) if fills and plays_well(cue, self.skill, tempted) else _random_fill(cue, blanks)


def _parse_blanks(view_text: str) -> list[Cell]:
    """Parse the blank cells from the shown list or rows."""
    blank_list = BLANK_PATTERN.search(view_text)
    if blank_list:
        return [parse_cell(name) for name in blank_list[1].split("; ")]
    rows = [match[0].split() for match in ROW_PATTERN.finditer(view_text)]
    return [(r, c) for r, row in enumerate(rows) for c, value in enumerate(row) if value == "."]


def _random_fill(cue: PolicyInput, blanks: Sequence[Cell]) -> str:
    """Return a random value for a random blank cell."""
    value = cue.random.randint(1, len(cue.task.data["solution"]))
    return _format_fills([(cue.random.choice(blanks), value)])


def _format_fills(fills: Sequence[Fill]) -> str:
    return "; ".join(f"{format_cell(cell)} = {value}" for cell, value in fills)
