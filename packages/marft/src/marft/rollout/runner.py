"""Interface of rollout runners, shared by training, evaluation and batch collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.types import Episode
from marft.common.usage import ENGINE_RESTARTS
from marft.config.run import RunSettings

FAILURE_METRICS = (
    ENGINE_RESTARTS,
    "workers_lost",
    "episodes_retried",
    "tasks_excluded",
)  # metrics of worker processes


def ignore_episode(_: Episode) -> None:
    """Ignore a finished episode; default ``on_done`` callback."""


class RolloutHandle(Protocol):
    """Handle for attempts in the background."""

    @property
    def outcome(self) -> Future[list[Episode]]:
        """Future with the episodes, in the order of the attempts.

        The future is done when no attempt is in progress.
        """
        ...

    def cancel(self) -> None:
        """Cancel the attempts."""
        ...


class RolloutRunner(Protocol):
    """Runner for a run's episodes, independent of where environment, tools and models run."""

    @property
    def run(self) -> RunSettings:
        """Recipe of the run."""
        ...

    @property
    def team(self) -> Team:
        """Team of the recipe, its agents equipped with tools and skills."""
        ...

    @property
    def excluded_tasks(self) -> dict[str, str]:
        """Excluded tasks, by id, and the reason.

        A task is excluded after repeated crashes of worker processes. The mapping grows during rollouts. Entries added
        from an earlier run stay in effect.
        """
        ...

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = ignore_episode
    ) -> list[Episode]:
        """Play every attempt and return rewarded episodes in the same order.

        An error in an environment, a tool or a reward term affects only its own episode. The status of that episode is
        ``failed`` or ``timed_out``, with the reason. An attempt lost with a worker process is played again.

        Args:
            attempts: attempts to play.
            team: team to play instead of the recipe's team; optional.
            on_done: callback for each finished episode, rewards included.
        """
        ...

    def begin(self, attempts: Sequence[Attempt]) -> RolloutHandle:
        """Start attempts in the background; requires a separate engine."""
        ...

    def end(self, handles: Sequence[RolloutHandle]) -> None:
        """Cancel background attempts and wait a few seconds for their end."""
        ...

    def publish(self, version: int) -> None:
        """Publish the current weights of trained policies under a version.

        With an engine in this process, no rollout may be in progress.
        """
        ...

    def version(self, policy: str) -> int:
        """Return the latest published version of a policy; 0 before the first."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return total usage of sampling and scoring, and failure counts, by metric name."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
