"""Attempt with retries after lost worker processes."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from marft.agents.game import Attempt
from marft.common.types import Episode, Fork, Status


class WorkerLostError(Exception):
    """Error for a lost process and its attempts.

    Args:
        status: status of the episode if the attempt is given up.
        reason: description of how the process ended.
        attempt_count: number of attempts in the lost process, this attempt included.
    """

    def __init__(self, status: Status, reason: str, attempt_count: int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.attempt_count = status, reason, attempt_count


@dataclass(frozen=True, slots=True, eq=False)
class ActiveAttempt:
    """Attempt in progress in a worker.

    Args:
        attempt: attempt in progress.
        ended: future, done when the episode no longer counts as live.
        episode: future of the rewarded episode.
        max_concurrent: maximum number of concurrent attempts in the worker, this attempt included.
    """

    attempt: Attempt
    ended: asyncio.Future[None]
    episode: asyncio.Future[Episode]
    max_concurrent: float = math.inf

    def set_episode(self, episode: Episode) -> None:
        """Set the rewarded episode."""
        if not self.ended.done():
            self.ended.set_result(None)
        if not self.episode.done():
            self.episode.set_result(episode)

    def set_error(self, error: Exception) -> None:
        """Set an error on both futures."""
        for future in (self.ended, self.episode):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved, even without a waiting coroutine


@dataclass(slots=True, eq=False)
class RetriedRollout:
    """Attempt with retries: after a lost process, the attempt restarts under the same keys.

    A lost process takes all its attempts along, and any of them may be the cause. Each of them is therefore played
    again with at most half as many concurrent attempts, and finally alone. An attempt that is alone in a lost process
    is the cause. Attempts that only shared a process with the cause are not blamed.

    Args:
        attempt: attempt to play.
        team: pickled team to play with.
        max_concurrent: maximum number of concurrent attempts in the worker, this attempt included.
        sole_failures: number of lost processes that played only this attempt.
        active: current play of the attempt; None after a loss.
        failed_episode: failed episode, after the attempt was given up.
        started_at: start time, in seconds of ``time.perf_counter``.

    >>> from marft.common.types import Task
    >>> tried = RetriedRollout(Attempt(Task("poison", "begin"), "train/0"), b"")
    >>> for company in (8, 3, 1, 1):
    ...     tried.record_loss(WorkerLostError("failed", "it was killed", company))
    ...     print(tried.max_concurrent, tried.sole_failures)
    4 0
    1 0
    1 1
    1 2
    """

    attempt: Attempt
    team: bytes
    max_concurrent: float = math.inf
    sole_failures: int = 0
    active: ActiveAttempt | None = None
    failed_episode: Episode | None = None  # failed episode, after the attempt was given up
    started_at: float = field(default_factory=time.perf_counter)

    def record_loss(self, error: WorkerLostError) -> None:
        """Update the limits after the loss of the attempt's process."""
        self.active = None
        self.max_concurrent = max(1, error.attempt_count // 2)
        self.sole_failures += error.attempt_count == 1

    def fail(self, status: Status, reason: str) -> None:
        """Stop playing the attempt; the episode gets the status and reason."""
        attempt, replay = self.attempt, self.attempt.replay
        self.failed_episode = Episode(
            attempt.task,
            attempt.stream,
            attempt.sample,
            (),
            status,
            error=reason,
            seconds=time.perf_counter() - self.started_at,
            fork=Fork(replay.origin, replay.fork_id) if replay else None,
        )
