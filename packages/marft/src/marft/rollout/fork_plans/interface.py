"""Interface of fork modes, and shared helpers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.config.algorithm import AlgorithmSettings


class PlayFunction(Protocol):
    """Function that plays attempts and returns episodes in the same order.

    ``on_done`` is called with each finished episode.
    """

    def __call__(
        self, attempts: Sequence[Attempt], *, on_done: Callable[[Episode], None] = lambda _: None
    ) -> list[Episode]: ...


@dataclass(frozen=True, slots=True)
class ForkContext:
    """Context of a training step for a fork mode.

    Args:
        trained: policies in training.
        rewarded: function that returns episodes with the rewards for credit assignment.
        on_done: callback for each finished attempt of the step.
    """

    trained: Sequence[str]
    rewarded: Callable[[Sequence[Episode]], Sequence[Episode]]
    on_done: Callable[[Episode], None]


class ForkPlan(Protocol):
    """Mode of replaying a step's episodes from single actions, for credit assignment.

    ``missing_note`` describes the effect of missing forks on credit; empty if there is nothing to say.
    """

    missing_note: ClassVar[str]

    def play(
        self, play: PlayFunction, attempts: Sequence[Attempt], step: ForkContext
    ) -> tuple[list[Episode], list[Episode]]:
        """Play attempts and their forks → attempts, all episodes."""


def get_fork_plan(algorithm: AlgorithmSettings) -> ForkPlan | None:
    """Return the fork mode of an algorithm's credit; None without forks."""
    return cast("ForkPlan | None", algorithm.credit.fork_plan)


def select_on_policy(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the on-policy episodes.

    Normally these are the episodes without a fork. In a tree, where every episode is a fork, these are the episodes
    that branched at their first action and ran to the end. A tree continues from the best of several candidates, so its
    later branches are not representative of the policies.
    """
    unforked = [episode for episode in episodes if episode.fork is None]
    return unforked or [
        episode
        for episode in episodes
        if episode.fork and episode.actions and episode.fork.at == episode.actions[0].id and episode.status != "paused"
    ]


def resampled_action(episode: Episode) -> Action | None:
    """Return the resampled action of a forked episode; None if the episode ended before."""
    assert episode.fork is not None
    return next((action for action in episode.actions if action.id == episode.fork.at), None)


def build_replay(attempt: Attempt, episode: Episode, actions: Sequence[Action]) -> Replay:
    """Build a replay: recorded actions take the place of sampling."""
    return Replay(episode.name, attempt.stream, attempt.sample, {action.id: action for action in actions})
