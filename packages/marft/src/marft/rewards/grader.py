"""Grading in processes of its own: an answer that hangs, crashes or eats memory loses only its own grade."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.processes.helpers import DiedError, FailedError, HelperError, Helpers, limit_memory, serve

MEMORY_BYTES = 4 * 2**30


class GradingError(Exception):
    """An answer could not be graded. It is not wrong: it leaves the batch and is counted."""


class Grader:
    """A pool of grading processes.

    Args:
        timeout: seconds for one answer.
        processes: how many answers are graded at once.
    """

    def __init__(self, timeout: float, processes: int | None = None) -> None:
        self.timeout = timeout
        self._helpers = Helpers("marft.rewards.grader", processes)

    def equal(self, gold: str, written: str, tolerances: Sequence[float] = (), question: str = "") -> bool:
        """Whether ``written`` states ``gold``; blocks until a process is free. Safe to call from many threads.

        Args:
            tolerances: how far numbers may be from the gold ones.
            question: what was asked: whether a percentage or a point is.

        Raises:
            GradingError: it took too long, or the process died of it.
        """
        asked = {"gold": gold, "written": written, "tolerances": [*tolerances], "question": question}
        try:
            return bool(self._helpers.ask(asked, self.timeout))
        except FailedError as error:
            raise GradingError(f"math-verify failed: {error}") from error
        except DiedError as error:
            raise GradingError("the grading process died of this answer") from error
        except HelperError as error:
            raise GradingError(f"grading {error}") from error

    def close(self) -> None:
        """End the processes that are not at work."""
        self._helpers.close()


def _serve() -> None:
    """Answer questions, each the arguments of ``math_answers.equal``."""
    limit_memory(MEMORY_BYTES)
    from marft.rewards.math_answers import equal

    serve(lambda question: equal(**question))


if __name__ == "__main__":
    _serve()
