"""Sudoku environment: generated puzzles, views of each agent, sessions, and a scripted policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.agents.prompt_messages import split_messages
from marft.common.errors import UserError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.settings import Names, NonNegativeCount
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedEnvironment, GeneratedTask, describe_unknown_roles
from marft_envs.grids.maps import Cell, format_cell, format_cells, parse_cell
from marft_envs.grids.script import plays_well
from marft_envs.sudoku.rules import SudokuBoard, find_error, parse_answer, render_rows, to_grid
from marft_envs.sudoku.solver import canonical_text, generate_puzzle

PEER_PATTERN = re.compile(r"(\d,\d) sees ([\d ]+|nothing)")
BLANK_PATTERN = re.compile(r"^Blank: ([\d,; ]+)\.", re.MULTILINE)
ROW_PATTERN = re.compile(r"^[\d.]( [\d.])+$", re.MULTILINE)
FILL_PATTERN = re.compile(r"(\d,\d) can be (\d)")

Fill = tuple[Cell, int]


@dataclass(frozen=True)
class SudokuScript:
    """Scripted policy for ``tool``, ``plan`` and ``solver``; further roles play as solvers.

    A tool agent names the value of a blank cell. A planner fills it in. A solver does both. Weak players make
    mistakes: the tool agent states only that a cell is blank, most often at large values. The planner fills a random
    value into a random blank cell, most often instead of fills in low rows.

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
        _, messages = split_messages(cue.last_message)
        hint = "\n\n".join(message.text for message in messages)
        fills = [(parse_cell(cell), int(value)) for cell, value in FILL_PATTERN.findall(hint)]
        if not messages and ROW_PATTERN.search(cue.last_message):
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


class SudokuSession:
    """One attempt at a puzzle."""

    def __init__(self, settings: Sudoku, task: Task) -> None:
        self.settings = settings
        self.givens, self.solution = (SudokuBoard(to_grid(task.data[key])) for key in ("puzzle", "solution"))
        self.board, self.max_steps = self.givens, settings.step_limit(task.data["blanks"])
        self.steps = self.rejected = 0
        self.best_share = 0.0

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self.settings.build_observation(self.board, "")

    async def step(self, actions: JointAction) -> Step:
        """Apply the answer's fills or grid."""
        feedback, tried_board = self._apply_answer(graded_text(actions.answer))
        self.steps += 1
        self.rejected += bool(feedback)
        solved = self.board == self.solution
        share = max(self._correct_share(self.board), self._correct_share(tried_board))
        increase, self.best_share = max(0.0, share - self.best_share), max(share, self.best_share)
        feedback = " ".join(filter(None, (feedback, self.board.dead_end_reason)))
        is_dead_end = bool(self.board.dead_end_reason) and self.settings.fills == "one"
        over = solved or is_dead_end or self.steps == self.max_steps
        return Step(
            Observation(feedback) if over else self.settings.build_observation(self.board, feedback),
            increase if self.settings.reward == "cells" else float(solved),
            terminated=over,
            success=solved,
            info={"progress": self.best_share, "measures": {"refused": float(self.rejected)}},
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _correct_share(self, board: SudokuBoard) -> float:
        """Return the fraction of blank cells with the correct value."""
        blanks = self.givens.blank_cells
        return sum(board.value_at(cell) == self.solution.value_at(cell) for cell in blanks) / len(blanks)

    def _apply_answer(self, text: str) -> tuple[str, SudokuBoard]:
        """Return the feedback on an answer, and the board that the answer describes.

        Fills are applied up to the first invalid one.
        """
        size, board = self.givens.size, self.board
        answer = parse_answer(text, size)
        if isinstance(answer, list) and (self.settings.fills == "any" or len(answer) == 1):
            for cell, value in answer:
                self.board, problem = self.board.place_value(cell, value)
                if problem:
                    return problem, self.board
            return "", self.board
        if isinstance(answer, tuple) and self.settings.fills == "any":
            problem = find_error(answer, self.givens)
            self.board = self.board if problem else SudokuBoard(answer)
            return problem, SudokuBoard(answer)
        expected_form = (
            "one fill such as 1,2 = 3" if self.settings.fills == "one" else "fills such as 1,2 = 3; or the whole grid"
        )
        return f"Nothing filled: say {expected_form}.", board


DEFAULT_STEPS = 5  # default steps in an episode with any fills, as published
MAX_ATTEMPTS = 200  # maximum solutions drawn for one task


class Sudoku(GeneratedEnvironment):
    """Sudokus with a unique solution, filled in single cells, in lists of cells, or as a whole.

    The fills are read from the answer. The texts of other agents only inform the answering agent. With
    ``seen_for``, only some roles see the values in the row, column and box of each blank cell.
    """

    stream: ClassVar[str] = "Sudoku"
    size: Literal[4, 6, 9] = Field(default=4, description="rows, and columns; boxes have 2 × 2, 2 × 3 and 3 × 3 cells")
    blanks: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="number of blank cells; the maximum if it varies"
    )
    min_blanks: NonNegativeCount = Field(
        default=0, description="minimum number of blank cells, if it varies; 0: the same as blanks"
    )
    singles: bool = Field(default=False, description="only puzzles with a cell of one possible value at each point")
    fills: Literal["any", "one"] = Field(
        default="any", description="form of an answer; any: fills or the whole grid; one: one fill"
    )
    max_steps: NonNegativeCount = Field(
        default=0,
        description=(
            "maximum steps in an episode; 0: 5 with any fills, otherwise 1.5 times the number of blank cells, rounded "
            "up"
        ),
    )
    view: Literal["grid", "list", "both"] = Field(
        default="grid", description="form of the board: grid of rows, list of blank cells, or both"
    )
    seen_for: Names = Field(
        default=(), description="roles that see the values in the row, column and box of each blank cell"
    )
    reward: Literal["cells", "success"] = Field(
        default="cells",
        description="kind of reward; cells: a share for each correct cell; success: only for the solution",
    )

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
        return describe_unknown_roles({"seen_for": self.seen_for}, roles)

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a puzzle.

        Raises:
            UserError: no puzzle with this number of blank cells was found in ``MAX_ATTEMPTS`` draws.
        """
        blanks = random.randint(self.min_blanks or self.blanks, self.blanks)
        for _ in range(MAX_ATTEMPTS):
            puzzle_found = generate_puzzle(self.size, blanks, self.singles, random)
            if puzzle_found:
                board, solution = puzzle_found
                data = {
                    "puzzle": [list(row) for row in board.grid],
                    "solution": [list(row) for row in solution.grid],
                    "blanks": blanks,
                    "fewest_steps": blanks if self.fills == "one" else 1,
                }
                return GeneratedTask(canonical_text(board), self.build_observation(board, "").text, data)
        condition = " that singles lead to" if self.singles else ""
        raise UserError(
            f"environment {self.name!r}: of {MAX_ATTEMPTS} solutions of size {self.size} none has a puzzle with "
            f"{blanks} blanks{condition}; lower blanks" + (", or set singles = false" if self.singles else "")
        )

    def start(self, task: Task, seed: int) -> SudokuSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a puzzle."""
        return SudokuSession(self, task)

    def step_limit(self, blanks: int) -> int:
        """Return the maximum steps for a puzzle with a number of blank cells."""
        return self.max_steps or (DEFAULT_STEPS if self.fills == "any" else -(-3 * blanks // 2))

    def script(self, skill: float = 1.0) -> SudokuScript:
        """Return a scripted policy for ``tool``, ``plan`` and ``solver``."""
        return SudokuScript(skill, self.fills)

    def build_observation(self, board: SudokuBoard, feedback: str) -> Observation:
        """Build the observation of a board, with feedback on the last step."""
        lines = [feedback] if feedback else []
        lines += render_rows(board) if self.view in ("grid", "both") else ()
        lines += [f"Blank: {format_cells(board.blank_cells)}."] if self.view in ("list", "both") else ()
        peer_texts = "; ".join(
            f"{format_cell(cell)} sees {_join_values(board.peer_values(cell))}" for cell in board.blank_cells
        )
        return Observation("\n".join(lines), dict.fromkeys(self.seen_for, f"{peer_texts}."))


def _join_values(values: Sequence[int]) -> str:
    return " ".join(map(str, values)) or "nothing"
