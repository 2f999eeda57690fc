"""Math grading in separate processes: an answer that hangs, crashes or exhausts memory only fails its own grading."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.processes.process_pool import (
    HelperRequestError,
    ProcessExitedError,
    ProcessPool,
    RequestFailedError,
    limit_memory,
    serve,
)

MEMORY_BYTES = 4 * 2**30


class GradingError(Exception):
    """Grading failure. The answer does not count as wrong: its episode leaves the batch and is counted as failed."""


def require_math_verify() -> None:
    """Check that math-verify, which an extra installs, is available.

    Raises:
        UserError: it is not installed; the message has the command that installs it.
    """
    if find_spec("math_verify") is None:
        raise UserError(f"grading mathematics needs math-verify, which is not installed: {install_command('math')}")


class Grader:
    """Pool of grading processes.

    Args:
        timeout: seconds for one answer.
        processes: maximum number of concurrent gradings.
    """

    def __init__(self, timeout: float, processes: int | None = None) -> None:
        self.timeout = timeout
        self._helpers = ProcessPool("marft.rewards.grader", processes)

    def matches_gold(self, gold: str, written: str, tolerances: Sequence[float] = (), question: str = "") -> bool:
        """Return True if ``written`` states ``gold``. The call blocks until a process is free, and is thread-safe.

        Args:
            tolerances: maximum differences from the gold numbers.
            question: the task's question; decides whether a percentage or a point is expected.

        Raises:
            GradingError: the grading timed out, or its process crashed.
        """
        request = {"gold": gold, "written": written, "tolerances": [*tolerances], "question": question}
        try:
            return bool(self._helpers.request(request, self.timeout))
        except RequestFailedError as error:
            raise GradingError(f"math-verify failed: {error}") from error
        except ProcessExitedError as error:
            raise GradingError("the grading process died of this answer") from error
        except HelperRequestError as error:
            raise GradingError(f"grading {error}") from error

    def close(self) -> None:
        """Stop the idle processes."""
        self._helpers.close()


def _serve() -> None:
    """Answer requests with the arguments of ``math_answers.matches_gold``."""
    limit_memory(MEMORY_BYTES)
    from marft.rewards.math_answers import matches_gold

    serve(lambda question: matches_gold(**question))


if __name__ == "__main__":
    _serve()
