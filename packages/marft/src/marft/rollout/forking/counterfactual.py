"""Counterfactual forks: resample an action and the later parts that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.rollout.forking.interface import Play, Step, replay_of


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """Fork mode that resamples every action of a trained policy ``resamples`` times."""

    without: ClassVar[str] = ""

    resamples: int

    def play(self, play: Play, attempts: Sequence[Attempt], step: Step) -> tuple[list[Episode], list[Episode]]:
        """Play the attempts, then their counterfactuals → attempts, all episodes."""
        played = play(attempts, on_done=step.on_done)
        return played, [*played, *counterfactuals(play, attempts, played, self.resamples, step.trained)]


def counterfactuals(
    play: Play, attempts: Sequence[Attempt], episodes: Sequence[Episode], resamples: int, policies: Sequence[str]
) -> list[Episode]:
    """Play ``resamples`` counterfactual episodes for every action of the given policies.

    In each counterfactual the agent samples the action again, and the episode continues from there. Other actions of
    the same step stay unchanged if they do not depend on the action.
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
    """Return the ids of an action and of its direct and indirect observers."""
    found = {action.id}
    grew = True
    while grew:
        new = {other.id for other in actions if found & set(other.sees)} - found
        found |= new
        grew = bool(new)
    return found


def replay_around(attempt: Attempt, episode: Episode, action: Action) -> Replay:
    """Build a replay that resamples one action and every dependent action.

    The replay serves all actions of earlier steps, and the independent actions of the same step.
    """
    anew = dependents(episode.actions, action)
    served = [a for a in episode.actions if a.step <= action.step and a.id not in anew]
    observed = [t.observation.whole for t in episode.transitions[: action.step + 1]]
    return replace(replay_of(attempt, episode, served), at=action.id, instead_of=action, observations=observed)
