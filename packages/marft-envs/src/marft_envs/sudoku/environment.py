"""Sudoku environment: generated puzzles, and views of each agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Observation, Task
from marft.config.settings import Names, NonNegativeCount
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.grids.maps import format_cell, format_cells
from marft_envs.grids.settings import find_unknown_roles
from marft_envs.sudoku.rules import SudokuBoard, render_rows, to_grid
from marft_envs.sudoku.script import SudokuScript
from marft_envs.sudoku.session import SudokuPuzzle, SudokuSession
from marft_envs.sudoku.solver import canonical_text, generate_puzzle

DEFAULT_STEPS = 5  # default steps in an episode with any fills, as published
MAX_TRIES = 200  # maximum solutions drawn for one task


class Sudoku(GeneratedEnvironment):
    """Sudokus with a unique solution, filled in single cells, in lists of cells, or as a whole.

    The fills are read from the answer. The texts of other agents only inform the answering agent. With
    ``seen_for``, only some roles see the values in the row, column and box of each blank cell.
    """

    stream: ClassVar[str] = "Sudoku"
    size: Literal[4, 6, 9] = 4  # rows, and columns; boxes have 2 × 2, 2 × 3 and 3 × 3 cells
    blanks: Annotated[int, Field(ge=1, le=64)] = 8  # number of blank cells; the maximum if it varies
    min_blanks: NonNegativeCount = 0  # minimum number of blank cells, if it varies; 0: the same as blanks
    singles: bool = False  # require puzzles that can be solved by cells with only one possible value at each point
    fills: Literal["any", "one"] = "any"  # form of an answer; any: fills or the whole grid; one: one fill
    # maximum steps in an episode; 0: 5 with any fills, otherwise 1.5 times the number of blank cells, rounded up
    max_steps: NonNegativeCount = 0
    view: Literal["grid", "list", "both"] = "grid"  # form of the board: grid of rows, list of blank cells, or both
    seen_for: Names = ()  # roles that see the values in the row, column and box of each blank cell
    # kind of reward; cells: a share for each correct cell; success: only for the solution
    reward: Literal["cells", "success"] = "cells"

    @model_validator(mode="after")
    def _check_settings(self) -> Sudoku:
        if self.min_blanks > self.blanks:
            raise PydanticCustomError(
                "min_blanks",
                "min_blanks is more than blanks ({blanks}); lower it, or raise that",
                {"blanks": self.blanks},
            )
        if self.view == "list" and not self.seen_for:
            raise PydanticCustomError(
                "view", "a list of blanks tells nobody what to fill in; name roles in seen_for, or set view = 'both'"
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each setting with an unknown role."""
        return find_unknown_roles({"seen_for": self.seen_for}, roles)

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a puzzle.

        Raises:
            ValueError: no puzzle with this number of blank cells was found in ``MAX_TRIES`` draws.
        """
        blanks = random.randint(self.min_blanks or self.blanks, self.blanks)
        for _ in range(MAX_TRIES):
            puzzle_found = generate_puzzle(self.size, blanks, self.singles, random)
            if puzzle_found:
                board, solution = puzzle_found
                data = {
                    "puzzle": [list(row) for row in board.grid],
                    "solution": [list(row) for row in solution.grid],
                    "blanks": blanks,
                    "fewest_steps": blanks if self.fills == "one" else 1,
                }
                return GeneratedTask(canonical_text(board), self._build_observation(board, "").text, data)
        condition = " that singles lead to" if self.singles else ""
        raise ValueError(
            f"environment {self.name!r}: of {MAX_TRIES} solutions of size {self.size} none has a puzzle with {blanks} "
            f"blanks{condition}; lower blanks" + (", or set singles = false" if self.singles else "")
        )

    def start(self, task: Task, seed: int) -> SudokuSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a puzzle."""
        givens, solution = (SudokuBoard(to_grid(task.data[key])) for key in ("puzzle", "solution"))
        steps = self._step_limit(task.data["blanks"])
        return SudokuSession(
            SudokuPuzzle(givens, solution, self.fills, steps, self.reward == "cells", self._build_observation)
        )

    @property
    def step_bound(self) -> int:
        """Maximum steps in an episode."""
        return self._step_limit(self.blanks)

    def _step_limit(self, blanks: int) -> int:
        return self.max_steps or (DEFAULT_STEPS if self.fills == "any" else -(-3 * blanks // 2))

    def script(self, skill: float = 1.0) -> SudokuScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SudokuScript(skill, self.fills)

    def _build_observation(self, board: SudokuBoard, feedback: str) -> Observation:
        lines = [feedback] if feedback else []
        lines += render_rows(board) if self.view in ("grid", "both") else ()
        lines += [f"Blank: {format_cells(board.blank_cells)}."] if self.view in ("list", "both") else ()
        peer_texts = "; ".join(
            f"{format_cell(cell)} sees {_join_values(board.peer_values(cell))}" for cell in board.blank_cells
        )
        return Observation("\n".join(lines), dict.fromkeys(self.seen_for, f"{peer_texts}."))


def _join_values(values: Sequence[int]) -> str:
    return " ".join(map(str, values)) or "nothing"
