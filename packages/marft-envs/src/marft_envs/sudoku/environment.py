"""The environment: puzzles that are drawn, and what of them each agent is shown."""

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

WHOLE = 5  # steps of an episode in which any fills go, as published
TRIES = 200  # solutions that are drawn for one task


class Sudoku(Drawn):
    """Sudokus with one solution, filled in cell by cell, in lists of cells, or as a whole.

    Who answers fills in; what other agents say is for that one to read. With ``seen_for`` only some of them are told
    what the row, the column and the box of each blank hold.
    """

    stream: ClassVar[str] = "Sudoku"
    size: Literal[4, 6, 9] = 4  # rows and columns; boxes have 2 × 2, 2 × 3 and 3 × 3 cells
    blanks: Annotated[int, Field(ge=1, le=64)] = 8  # cells that are to be filled
    least_blanks: CountOrNone = 0  # where that varies: so many at least; 0: always as many as blanks
    singles: bool = False  # whether there is, at each point, a cell that only one value fits
    fills: Literal["any", "one"] = "any"  # in one step: fills or the whole grid, or one fill
    steps: CountOrNone = 0  # of an episode; 0: 5 where any fills go, else half as many again as there are blanks
    view: Literal["grid", "list", "both"] = "grid"  # the rows, a list of the blanks, or both
    seen_for: Names = ()  # roles that are told which values stand around each blank
    reward: Literal["cells", "success"] = "cells"  # each cell that is right pays its share; or only the solution pays

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
        """Roles that are named and not there."""
        return role_problems({"seen_for": self.seen_for}, roles)

    def draw(self, random: Random) -> Drawing:
        """A puzzle.

        Raises:
            ValueError: hardly any has so many blanks.
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

    def start(self, task: Task, seed: int) -> SudokuSession:  # noqa: ARG002  nothing here is random
        givens, solution = (Board(to_grid(task.data[key])) for key in ("puzzle", "solution"))
        steps = self._steps_in(task.data["blanks"])
        return SudokuSession(Puzzle(givens, solution, self.fills, steps, self.reward == "cells", self._shown))

    @property
    def most_steps(self) -> int:
        """Steps of an episode, at most."""
        return self._steps_in(self.blanks)

    def _steps_in(self, blanks: int) -> int:
        return self.steps or (WHOLE if self.fills == "any" else -(-3 * blanks // 2))

    def script(self, skill: float = 1.0) -> SudokuScript:
        """Who plays the roles ``tool``, ``plan`` and ``solver``."""
        return SudokuScript(skill, self.fills)

    def _shown(self, board: Board, told: str) -> Observation:
        here = [told] if told else []
        here += drawn(board) if self.view in ("grid", "both") else ()
        here += [f"Blank: {listed(board.blanks)}."] if self.view in ("list", "both") else ()
        around = "; ".join(f"{named(cell)} sees {_spaced(board.seen(cell))}" for cell in board.blanks)
        return Observation("\n".join(here), dict.fromkeys(self.seen_for, f"{around}."))


def _spaced(values: Sequence[int]) -> str:
    return " ".join(map(str, values)) or "nothing"
