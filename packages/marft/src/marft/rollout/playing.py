"""Who plays: attempts in, episodes out. Collecting, evaluating and training know no more of it than this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common.types import Episode
from marft.common.usage import RESTARTS
from marft.config.run import RunSettings

LOST = (RESTARTS, "workers_lost", "episodes_played_again", "tasks_set_aside")  # with processes


def nobody(_: Episode) -> None:
    """Whoever does not look at episodes as they end."""


class Begun(Protocol):
    """Attempts that are played in the background."""

    @property
    def outcome(self) -> Future[list[Episode]]:
        """Episodes in the order of the attempts, once nothing of them is played any more."""
        ...

    def cancel(self) -> None:
        """Let go of them."""
        ...


class Rollouts(Protocol):
    """Plays the episodes of a run, wherever its environment, tools and models are."""

    @property
    def run(self) -> RunSettings:
        """The recipe that is played."""
        ...

    @property
    def team(self) -> Team:
        """The recipe's team, its agents equipped with their tools and skills."""
        ...

    @property
    def set_aside(self) -> dict[str, str]:
        """Tasks that are played no more, by id, and why: they have ended one process after the other. It grows while
        episodes are played; what it is given, from a run before, it keeps to."""
        ...

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = nobody
    ) -> list[Episode]:
        """Play every attempt → episodes in the same order, with the rewards that the recipe's terms make of them.

        What goes wrong in an environment, a tool or a term loses its own episodes alone: they are ``failed`` or
        ``timed_out``, with the reason. What is lost with a process is played again.

        Args:
            team: plays instead of the recipe's own.
            on_done: sees each episode as soon as it is over and has its rewards.
        """
        ...

    def begin(self, attempts: Sequence[Attempt]) -> Begun:
        """Play attempts in the background, with an engine that is apart."""
        ...

    def end(self, begun: Sequence[Begun]) -> None:
        """Let go of what is played in the background, and wait some seconds until it has been."""
        ...

    def publish(self, version: int) -> None:
        """The policies in training are at this version now. Nothing may be played meanwhile, but with an engine that is
        apart."""
        ...

    def version(self, policy: str) -> int:
        """The version of a policy that was published last; 0 where none was."""
        ...

    def usage(self) -> Mapping[str, float]:
        """What sampling and scoring have taken so far, and what was given up, by the name of a metric."""
        ...

    def close(self) -> None:
        """End whatever was started."""
        ...
