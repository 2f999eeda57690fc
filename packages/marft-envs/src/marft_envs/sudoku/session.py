"""Sessions: what is filled in, what is wrong with it, what it pays."""

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
    """What a session is about.

    Args:
        fills: what an answer is: one fill, or fills or the whole grid.
        steps: of an episode, at most.
        cells: whether each cell that is right pays its share; else only the solution pays.
    """

    givens: Board
    solution: Board
    fills: Literal["one", "any"]
    steps: int
    cells: bool
    show: Callable[[Board, str], Observation]

    def right(self, board: Board) -> float:
        """The share of the puzzle's blanks that are filled, and rightly."""
        blanks = self.givens.blanks
        return sum(board.at(cell) == self.solution.at(cell) for cell in blanks) / len(blanks)


class SudokuSession:
    """One attempt at a puzzle."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle, self.board = puzzle, puzzle.givens
        self.steps = self.refused = 0
        self.best = 0.0

    async def reset(self) -> Observation:
        return self.puzzle.show(self.board, "")

    async def step(self, actions: JointAction) -> Step:
        """Take the answer's fills, or its grid."""
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

    async def close(self) -> None: ...

    def _take(self, text: str) -> tuple[str, Board]:
        """What is told of an answer, and the board that it meant. Fills are taken up to one that is refused."""
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
