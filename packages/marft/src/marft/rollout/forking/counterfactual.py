"""Counterfactuals: one action is sampled anew, and everything that depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.rollout.forking.interface import Play, Step, replay_of


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """Every action of a trained policy is sampled ``resamples`` times more."""

    without: ClassVar[str] = ""

    resamples: int

    def play(self, play: Play, attempts: Sequence[Attempt], step: Step) -> tuple[list[Episode], list[Episode]]:
        """Play the attempts, then their forks."""
        played = play(attempts, on_done=step.on_done)
        return played, [*played, *counterfactuals(play, attempts, played, self.resamples, step.trained)]


def counterfactuals(
    play: Play, attempts: Sequence[Attempt], episodes: Sequence[Episode], resamples: int, policies: Sequence[str]
) -> list[Episode]:
    """For every action of the given policies, episodes in which its agent acts anew and all go on from there.

    Of the action's own step, what does not depend on it stays as it was.
    """
    return play(
        [
            replace(
                attempt,
                stream=f"{attempt.stream}/fork/{action.id}/{number}",
                replay=replay_around(attempt, episode, action),
            )
            for attempt, episode in zip(attempts, episodes, strict=True)
            if episode.scored
            for action in episode.actions
            if action.policy in policies
            for number in range(resamples)
        ]
    )


def dependents(actions: Sequence[Action], action: Action) -> set[str]:
    """Ids of the action and of all that saw it, directly or not."""
    found = {action.id}
    grew = True
    while grew:
        new = {other.id for other in actions if found & set(other.sees)} - found
        found |= new
        grew = bool(new)
    return found


def replay_around(attempt: Attempt, episode: Episode, action: Action) -> Replay:
    """What is served of an episode so that one action is sampled anew, and what depends on it: of the action's own step
    the others, and all that came before."""
    anew = dependents(episode.actions, action)
    served = [a for a in episode.actions if a.step <= action.step and a.id not in anew]
    observed = [t.observation.whole for t in episode.transitions[: action.step + 1]]
    return replace(replay_of(attempt, episode, served), at=action.id, instead_of=action, observations=observed)
