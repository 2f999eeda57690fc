"""Sudoku environment: generated puzzles, and views of each agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation, Task
from marft.config.settings import CountOrNone, Names
from marft_envs.drawn import Drawing, Drawn
from marft_envs.grids.maps import listed, named
from marft_envs.grids.settings import role_problems
from marft_envs.sudoku.rules import Board, drawn, to_grid
from marft_envs.sudoku.script import SudokuScript
from marft_envs.sudoku.session import Puzzle, SudokuSession
from marft_envs.sudoku.solving import canonical, puzzle

WHOLE = 5  # default steps in an episode with any fills, as published
TRIES = 200  # maximum solutions drawn for one task


class Sudoku(Drawn):
    """Sudokus with a unique solution, filled in single cells, in lists of cells, or as a whole.

    The fills are read from the answer. The texts of other agents only inform the answering agent. With
    ``seen_for``, only some roles see the values in the row, column and box of each blank cell.
    """

    stream: ClassVar[str] = "Sudoku"
    size: Literal[4, 6, 9] = 4  # rows, and columns; boxes have 2 × 2, 2 × 3 and 3 × 3 cells
    blanks: Annotated[int, Field(ge=1, le=64)] = 8  # number of blank cells; the maximum if it varies
    least_blanks: CountOrNone = 0  # minimum number of blank cells, if it varies; 0: the same as blanks
    singles: bool = False  # require puzzles that can be solved by cells with only one possible value at each point
    fills: Literal["any", "one"] = "any"  # form of an answer; any: fills or the whole grid; one: one fill
    # maximum steps in an episode; 0: 5 with any fills, otherwise 1.5 times the number of blank cells, rounded up
    steps: CountOrNone = 0
    view: Literal["grid", "list", "both"] = "grid"  # form of the board: grid of rows, list of blank cells, or both
    seen_for: Names = ()  # roles that see the values in the row, column and box of each blank cell
    # kind of reward; cells: a share for each correct cell; success: only for the solution
    reward: Literal["cells", "success"] = "cells"

    @model_validator(mode="after")
    def _possible(self) -> Sudoku:
        if self.least_blanks > self.blanks:
            raise PydanticCustomError(
                "least_blanks", "is more than blanks ({blanks}); lower it, or raise that", {"blanks": self.blanks}
            )
        if self.view == "list" and not self.seen_for:
            raise PydanticCustomError(
                "view", "a list of blanks tells nobody what to fill in; name roles in seen_for, or set view = 'both'"
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return role_problems({"seen_for": self.seen_for}, roles)

    def draw(self, random: Random) -> Drawing:
        """Generate a puzzle.

        Raises:
            ValueError: no puzzle with this number of blank cells was found in ``TRIES`` draws.
        """
        blanks = random.randint(self.least_blanks or self.blanks, self.blanks)
        for _ in range(TRIES):
            found = puzzle(self.size, blanks, self.singles, random)
            if found:
                board, solution = found
                data = {
                    "puzzle": [list(row) for row in board.grid],
                    "solution": [list(row) for row in solution.grid],
                    "blanks": blanks,
                    "fewest_steps": blanks if self.fills == "one" else 1,
                }
                return Drawing(canonical(board), self._shown(board, "").text, data)
        wish = " that singles lead to" if self.singles else ""
        raise ValueError(
            f"environment {self.name!r}: of {TRIES} solutions of size {self.size} none has a puzzle with {blanks} "
            f"blanks{wish}; lower blanks" + (", or set singles = false" if self.singles else "")
        )

    def start(self, task: Task, seed: int) -> SudokuSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a puzzle."""
        givens, solution = (Board(to_grid(task.data[key])) for key in ("puzzle", "solution"))
        steps = self._steps_in(task.data["blanks"])
        return SudokuSession(Puzzle(givens, solution, self.fills, steps, self.reward == "cells", self._shown))

    @property
    def most_steps(self) -> int:
        """Maximum steps in an episode."""
        return self._steps_in(self.blanks)

    def _steps_in(self, blanks: int) -> int:
        return self.steps or (WHOLE if self.fills == "any" else -(-3 * blanks // 2))

    def script(self, skill: float = 1.0) -> SudokuScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SudokuScript(skill, self.fills)

    def _shown(self, board: Board, told: str) -> Observation:
        here = [told] if told else []
        here += drawn(board) if self.view in ("grid", "both") else ()
        here += [f"Blank: {listed(board.blanks)}."] if self.view in ("list", "both") else ()
        around = "; ".join(f"{named(cell)} sees {_spaced(board.seen(cell))}" for cell in board.blanks)
        return Observation("\n".join(here), dict.fromkeys(self.seen_for, f"{around}."))


def _spaced(values: Sequence[int]) -> str:
    return " ".join(map(str, values)) or "nothing"
