"""What a mode of forking is given and gives, and what all modes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.config.algorithm import AlgorithmSettings


class Play(Protocol):
    """Plays attempts → episodes in the same order; ``on_done`` is told of each as it ends."""

    def __call__(
        self, attempts: Sequence[Attempt], *, on_done: Callable[[Episode], None] = lambda _: None
    ) -> list[Episode]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """The training step that is played for.

    Args:
        trained: policies that learn.
        rewarded: episodes with the rewards that credit is assigned from.
        on_done: is told of the step's attempts as they end.
    """

    trained: Sequence[str]
    rewarded: Callable[[Sequence[Episode]], Sequence[Episode]]
    on_done: Callable[[Episode], None]


class Forking(Protocol):
    """How a step's episodes are played again from single actions on, for a credit's sake.

    ``without`` says what the credit makes of episodes that have not been, where that is anything.
    """

    without: ClassVar[str]

    def play(self, play: Play, attempts: Sequence[Attempt], step: Step) -> tuple[list[Episode], list[Episode]]:
        """Play attempts, and what is forked from them → the attempts themselves, and everything that was played."""


def forking_of(algorithm: AlgorithmSettings) -> Forking | None:
    """Return how an algorithm's credit has episodes played again; None where it does not."""
    return cast("Forking | None", algorithm.credit.forking)


def as_played(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that the policies made by themselves: those that are no forks, or where there is nothing else (a
    tree's), those that branched at their very first action and were played to the end. What a tree carried on is the
    best of several and says little of its policies."""
    whole = [episode for episode in episodes if episode.fork is None]
    return whole or [
        episode
        for episode in episodes
        if episode.fork and episode.actions and episode.fork.at == episode.actions[0].id and episode.status != "paused"
    ]


def candidate_of(episode: Episode) -> Action | None:
    """The action at which an episode was forked, if it came to that."""
    assert episode.fork is not None
    return next((action for action in episode.actions if action.id == episode.fork.at), None)


def replay_of(attempt: Attempt, episode: Episode, actions: Sequence[Action]) -> Replay:
    """Serve recorded actions of an episode in place of sampling them."""
    return Replay(episode.name, attempt.stream, attempt.sample, {action.id: action for action in actions})
