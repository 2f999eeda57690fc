"""Session for one sudoku: fills, feedback and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.sudoku.answers import answer_in
from marft_envs.sudoku.rules import Board, wrong_with


@dataclass(frozen=True)
class Puzzle:
    """A puzzle and its rules.

    Args:
        givens: the board at the start.
        solution: the solved board.
        fills: form of an answer: "one" for one fill, "any" for fills or the whole grid.
        steps: maximum steps in an episode.
        cells: True to reward each correct cell; False to reward only the solution.
        show: function of the board and the last step's feedback that returns the observation.
    """

    givens: Board
    solution: Board
    fills: Literal["one", "any"]
    steps: int
    cells: bool
    show: Callable[[Board, str], Observation]

    def right(self, board: Board) -> float:
        """Return the fraction of blank cells with the correct value."""
        blanks = self.givens.blanks
        return sum(board.at(cell) == self.solution.at(cell) for cell in blanks) / len(blanks)


class SudokuSession:
    """One attempt at a puzzle."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle, self.board = puzzle, puzzle.givens
        self.steps = self.refused = 0
        self.best = 0.0

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self.puzzle.show(self.board, "")

    async def step(self, actions: JointAction) -> Step:
        """Apply the answer's fills or grid."""
        told, tried = self._take(text_said(actions.answer))
        self.steps += 1
        self.refused += bool(told)
        solved = self.board == self.puzzle.solution
        right = max(self.puzzle.right(self.board), self.puzzle.right(tried))
        gained, self.best = max(0.0, right - self.best), max(right, self.best)
        told = " ".join(filter(None, (told, self.board.stuck)))
        lost = bool(self.board.stuck) and self.puzzle.fills == "one"
        over = solved or lost or self.steps == self.puzzle.steps
        return Step(
            Observation(told) if over else self.puzzle.show(self.board, told),
            gained if self.puzzle.cells else float(solved), terminated=over, success=solved,
            info={"progress": self.best, "measures": {"refused": float(self.refused)}},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _take(self, text: str) -> tuple[str, Board]:
        """Return the feedback on an answer, and the board that the answer describes.

        Fills are applied up to the first invalid one.
        """
        size, board = self.puzzle.givens.size, self.board
        answer = answer_in(text, size)
        if isinstance(answer, list) and (self.puzzle.fills == "any" or len(answer) == 1):
            for cell, value in answer:
                self.board, problem = self.board.placed(cell, value)
                if problem:
                    return problem, self.board
            return "", self.board
        if isinstance(answer, tuple) and self.puzzle.fills == "any":
            problem = wrong_with(answer, self.puzzle.givens)
            self.board = self.board if problem else Board(answer)
            return problem, Board(answer)
        wanted = (
            "one fill such as 1,2 = 3" if self.puzzle.fills == "one" else "fills such as 1,2 = 3; or the whole grid"
        )
        return f"Nothing filled: say {wanted}.", board
