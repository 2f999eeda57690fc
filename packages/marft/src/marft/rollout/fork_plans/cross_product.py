"""Cross-product forks: every combination of the agents' samples at a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.types import Episode
from marft.rollout.fork_plans.interface import ForkContext, PlayFunction, build_replay


@dataclass(frozen=True, slots=True)
class CrossProductForks:
    """Fork mode that plays each combination of samples missing from the attempts."""

    missing_note: ClassVar[str] = ""

    def play(
        self, play: PlayFunction, attempts: Sequence[Attempt], step: ForkContext
    ) -> tuple[list[Episode], list[Episode]]:
        """Play the attempts, then the missing combinations → attempts, all episodes."""
        episodes = play(attempts, on_done=step.on_done)
        return episodes, [*episodes, *play_missing(play, attempts, episodes)]


def play_missing(play: PlayFunction, attempts: Sequence[Attempt], episodes: Sequence[Episode]) -> list[Episode]:
    """Play each missing combination of the agents' samples at a task.

    The environment scores every combination.

    Raises:
        RunError: an episode has several steps, an agent sees another agent's action, or different agents
            act in different episodes.
    """
    groups: dict[tuple[str, str], list[tuple[Attempt, Episode]]] = {}
    for attempt, episode in zip(attempts, episodes, strict=True):
        if episode.is_scored:
            _check_independent(episode)
            groups.setdefault((attempt.stream, attempt.task.id), []).append((attempt, episode))
    missing = []
    for group in groups.values():
        attempt, first = group[0]
        if any([a.id for a in episode.actions] != [a.id for a in first.actions] for _, episode in group):
            raise RunError(
                "joint_mode 'cross' needs a team in which the same agents act in every episode: who did not act has no "
                "sample for the other tuples; use joint_mode = 'aligned'"
            )
        for choice in product(range(len(group)), repeat=len(first.actions)):
            if len(set(choice)) > 1:
                actions = [group[sample][1].actions[number] for number, sample in enumerate(choice)]
                name = "-".join(map(str, choice))
                missing.append(
                    replace(
                        attempt, stream=f"{attempt.stream}/cross/{name}", replay=build_replay(attempt, first, actions)
                    )
                )
    return play(missing)


def _check_independent(episode: Episode) -> None:
    """Raise an error unless the episode has a single step and independent actions.

    Raises:
        RunError: the episode has several steps, or an agent sees another agent's action.
    """
    if len(episode.transitions) > 1 or any(action.sees for action in episode.actions):
        raise RunError(
            "joint_mode 'cross' needs a game of one step in which nobody sees anybody: a sample that was made seeing "
            "another one does not belong to other tuples; use joint_mode = 'aligned'"
        )
