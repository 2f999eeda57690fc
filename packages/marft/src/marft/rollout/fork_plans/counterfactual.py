"""Counterfactual forks: resample an action and the later parts that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.rollout.fork_plans.interface import ForkContext, PlayFunction, build_replay


@dataclass(frozen=True, slots=True)
class CounterfactualForks:
    """Fork mode that resamples every action of a trained policy ``resamples`` times."""

    missing_note: ClassVar[str] = ""

    resamples: int

    def play(
        self, play: PlayFunction, attempts: Sequence[Attempt], step: ForkContext
    ) -> tuple[list[Episode], list[Episode]]:
        """Play the attempts, then their counterfactuals → attempts, all episodes."""
        episodes = play(attempts, on_done=step.on_done)
        return episodes, [*episodes, *play_counterfactuals(play, attempts, episodes, self.resamples, step.trained)]


def play_counterfactuals(
    play: PlayFunction,
    attempts: Sequence[Attempt],
    episodes: Sequence[Episode],
    resamples: int,
    policies: Sequence[str],
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
                replay=build_counterfactual(attempt, episode, action),
            )
            for attempt, episode in zip(attempts, episodes, strict=True)
            if episode.is_scored
            for action in episode.actions
            if action.policy in policies
            for number in range(resamples)
        ]
    )


def find_dependents(actions: Sequence[Action], action: Action) -> set[str]:
    """Return the ids of an action and of its direct and indirect observers."""
    dependent_ids = {action.id}
    is_growing = True
    while is_growing:
        new = {observer.id for observer in actions if dependent_ids & set(observer.sees)} - dependent_ids
        dependent_ids |= new
        is_growing = bool(new)
    return dependent_ids


def build_counterfactual(attempt: Attempt, episode: Episode, action: Action) -> Replay:
    """Build a replay that resamples one action and every dependent action.

    The replay serves all actions of earlier steps, and the independent actions of the same step.
    """
    resampled = find_dependents(episode.actions, action)
    replayed = [a for a in episode.actions if a.step <= action.step and a.id not in resampled]
    observations = [t.observation.full_text for t in episode.transitions[: action.step + 1]]
    return replace(
        build_replay(attempt, episode, replayed), fork_id=action.id, replaced_action=action, observations=observations
    )
