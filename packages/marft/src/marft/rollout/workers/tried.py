"""What becomes of an attempt, however often a process that plays it ends."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from marft.agents.game import Attempt
from marft.common.types import Episode, Fork, Status


class LostError(Exception):
    """The process that played an attempt is gone.

    Args:
        status: what the episode would be, if it were not played again.
        reason: how the process ended.
        company: attempts that it played, this one among them.
    """

    def __init__(self, status: Status, reason: str, company: int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.company = status, reason, company


@dataclass(frozen=True, slots=True, eq=False)
class Playing:
    """An attempt that a worker plays.

    Args:
        over: it no longer counts as live.
        most: attempts that its worker may play, this one among them.
    """

    attempt: Attempt
    over: asyncio.Future[None]
    episode: asyncio.Future[Episode]
    most: float = math.inf

    def ends(self, episode: Episode) -> None:
        if not self.over.done():
            self.over.set_result(None)
        if not self.episode.done():
            self.episode.set_result(episode)

    def breaks(self, error: Exception) -> None:
        for future in (self.over, self.episode):
            if not future.done():
                future.set_exception(error)
                future.exception()  # has been heard, also where nobody waits


@dataclass(slots=True, eq=False)
class Tried:
    """An attempt that is played until it comes to its end, again under the same keys where its process is lost.

    A process that ends takes along all that it plays, and any of it may be why. So what it played is played again in
    half the company, and at last with nothing else beside it: what ends a process then has ended it, and nothing that
    was beside it once is blamed for that.

    Args:
        team: that plays it, as it travels.
        most: attempts that its process may play, this one among them.
        alone: how many processes ended that played nothing else.

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
    given_up: Episode | None = None  # what it comes to where it is played no more
    began: float = field(default_factory=time.perf_counter)

    def lose(self, lost: LostError) -> None:
        """Its process is gone."""
        self.playing = None
        self.most = max(1, lost.company // 2)
        self.alone += lost.company == 1

    def give_up(self, status: Status, reason: str) -> None:
        """It is played no more."""
        attempt, replay = self.attempt, self.attempt.replay
        self.given_up = Episode(
            attempt.task, attempt.stream, attempt.sample, (), status, error=reason,
            seconds=time.perf_counter() - self.began, fork=Fork(replay.origin, replay.at) if replay else None,
        )  # fmt: skip
