"""Session for one sudoku: fills, feedback and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft_envs.sudoku.answers import parse_answer
from marft_envs.sudoku.rules import SudokuBoard, find_error


@dataclass(frozen=True)
class SudokuPuzzle:
    """A puzzle and its rules.

    Args:
        givens: the board at the start.
        solution: the solved board.
        fills: form of an answer: "one" for one fill, "any" for fills or the whole grid.
        max_steps: maximum steps in an episode.
        rewards_cells: True to reward each correct cell; False to reward only the solution.
        observation_fn: function of the board and the last step's feedback that returns the observation.
    """

    givens: SudokuBoard
    solution: SudokuBoard
    fills: Literal["one", "any"]
    max_steps: int
    rewards_cells: bool
    observation_fn: Callable[[SudokuBoard, str], Observation]

    def correct_share(self, board: SudokuBoard) -> float:
        """Return the fraction of blank cells with the correct value."""
        blanks = self.givens.blank_cells
        return sum(board.value_at(cell) == self.solution.value_at(cell) for cell in blanks) / len(blanks)


class SudokuSession:
    """One attempt at a puzzle."""

    def __init__(self, puzzle: SudokuPuzzle) -> None:
        self.puzzle, self.board = puzzle, puzzle.givens
        self.steps = self.rejected = 0
        self.best_share = 0.0

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self.puzzle.observation_fn(self.board, "")

    async def step(self, actions: JointAction) -> Step:
        """Apply the answer's fills or grid."""
        feedback, tried_board = self._apply_answer(graded_text(actions.answer))
        self.steps += 1
        self.rejected += bool(feedback)
        solved = self.board == self.puzzle.solution
        share = max(self.puzzle.correct_share(self.board), self.puzzle.correct_share(tried_board))
        increase, self.best_share = max(0.0, share - self.best_share), max(share, self.best_share)
        feedback = " ".join(filter(None, (feedback, self.board.dead_end_reason)))
        is_dead_end = bool(self.board.dead_end_reason) and self.puzzle.fills == "one"
        over = solved or is_dead_end or self.steps == self.puzzle.max_steps
        return Step(
            Observation(feedback) if over else self.puzzle.observation_fn(self.board, feedback),
            increase if self.puzzle.rewards_cells else float(solved),
            terminated=over,
            success=solved,
            info={"progress": self.best_share, "measures": {"refused": float(self.rejected)}},
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _apply_answer(self, text: str) -> tuple[str, SudokuBoard]:
        """Return the feedback on an answer, and the board that the answer describes.

        Fills are applied up to the first invalid one.
        """
        size, board = self.puzzle.givens.size, self.board
        answer = parse_answer(text, size)
        if isinstance(answer, list) and (self.puzzle.fills == "any" or len(answer) == 1):
            for cell, value in answer:
                self.board, problem = self.board.place_value(cell, value)
                if problem:
                    return problem, self.board
            return "", self.board
        if isinstance(answer, tuple) and self.puzzle.fills == "any":
            problem = find_error(answer, self.puzzle.givens)
            self.board = self.board if problem else SudokuBoard(answer)
            return problem, SudokuBoard(answer)
        expected_form = (
            "one fill such as 1,2 = 3" if self.puzzle.fills == "one" else "fills such as 1,2 = 3; or the whole grid"
        )
        return f"Nothing filled: say {expected_form}.", board
