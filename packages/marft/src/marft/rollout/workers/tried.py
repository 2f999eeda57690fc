"""Attempt with retries after lost worker processes."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from marft.agents.game import Attempt
from marft.common.types import Episode, Fork, Status


class LostError(Exception):
    """Error for a lost process and its attempts.

    Args:
        status: status of the episode if the attempt is given up.
        reason: description of how the process ended.
        company: number of attempts in the lost process, this attempt included.
    """

    def __init__(self, status: Status, reason: str, company: int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.company = status, reason, company


@dataclass(frozen=True, slots=True, eq=False)
class Playing:
    """Attempt in progress in a worker.

    Args:
        attempt: attempt in progress.
        over: future, done when the episode no longer counts as live.
        episode: future of the rewarded episode.
        most: maximum number of concurrent attempts in the worker, this attempt included.
    """

    attempt: Attempt
    over: asyncio.Future[None]
    episode: asyncio.Future[Episode]
    most: float = math.inf

    def ends(self, episode: Episode) -> None:
        """Set the rewarded episode."""
        if not self.over.done():
            self.over.set_result(None)
        if not self.episode.done():
            self.episode.set_result(episode)

    def breaks(self, error: Exception) -> None:
        """Set an error on both futures."""
        for future in (self.over, self.episode):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved, even without a waiting coroutine


@dataclass(slots=True, eq=False)
class Tried:
    """Attempt with retries: after a lost process, the attempt restarts under the same keys.

    A lost process takes all its attempts along, and any of them may be the cause. Each of them is therefore played
    again with at most half as many concurrent attempts, and finally alone. An attempt that is alone in a lost process
    is the cause. Attempts that only shared a process with the cause are not blamed.

    Args:
        attempt: attempt to play.
        team: pickled team to play with.
        most: maximum number of concurrent attempts in the worker, this attempt included.
        alone: number of lost processes that played only this attempt.
        playing: current play of the attempt; None after a loss.
        given_up: failed episode, after the attempt was given up.
        began: start time, in seconds of ``time.perf_counter``.

    >>> from marft.common.types import Task
    >>> tried = Tried(Attempt(Task("poison", "begin"), "train/0"), b"")
    >>> for company in (8, 3, 1, 1):
    ...     tried.lose(LostError("failed", "it was killed", company))
    ...     print(tried.most, tried.alone)
    4 0
    1 0
    1 1
    1 2
    """

    attempt: Attempt
    team: bytes
    most: float = math.inf
    alone: int = 0
    playing: Playing | None = None
    given_up: Episode | None = None  # failed episode, after the attempt was given up
    began: float = field(default_factory=time.perf_counter)

    def lose(self, lost: LostError) -> None:
        """Update the limits after the loss of the attempt's process."""
        self.playing = None
        self.most = max(1, lost.company // 2)
        self.alone += lost.company == 1

    def give_up(self, status: Status, reason: str) -> None:
        """Stop playing the attempt; the episode gets the status and reason."""
        attempt, replay = self.attempt, self.attempt.replay
        self.given_up = Episode(
            attempt.task, attempt.stream, attempt.sample, (), status, error=reason,
            seconds=time.perf_counter() - self.began, fork=Fork(replay.origin, replay.at) if replay else None,
        )  # fmt: skip
