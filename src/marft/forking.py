"""Playing episodes again from one action on: trees of candidates, counterfactuals, crossed samples.

Each function is given what was played and a way to play more, and returns the episodes that it added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from marft.errors import RunError
from marft.game.game import Attempt, Replay
from marft.learning.credit.tree import step_score
from marft.types import Action, Episode

PlayMany = Callable[[Sequence[Attempt]], list[Episode]]


def counterfactuals(
    play: PlayMany, attempts: Sequence[Attempt], episodes: Sequence[Episode], resamples: int, policies: Sequence[str]
) -> list[Episode]:
    """For every action of the given policies, episodes in which its agent acts anew and all go on from there."""
    return play(
        [
            replace(
                attempt,
                stream=f"{attempt.stream}/fork/{action.id}/{number}",
                replay=_replay(attempt, episode, episode.actions[:place]),
            )
            for attempt, episode in zip(attempts, episodes, strict=True)
            if episode.scored
            for place, action in enumerate(episode.actions)
            if action.policy in policies
            for number in range(resamples)
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """An attempt of a tree and the actions that it has settled on."""

    attempt: Attempt
    settled: tuple[Action, ...] = ()


def tree(
    play: PlayMany, attempts: Sequence[Attempt], candidates: int, carry: Literal["best", "first"]
) -> tuple[list[Episode], list[Episode]]:
    """Sample every action several times from the same state, score the candidates, carry one on.

    A candidate is scored by playing its step to the end, before anything is carried on.

    Returns:
        The episode that each attempt came to in the end, and all episodes in which candidates were scored.
    """
    live = dict(enumerate(_Branch(attempt) for attempt in attempts))
    came_to: dict[int, Episode] = {}
    scored: list[Episode] = []
    depth = 0
    while live:
        numbers = list(live)
        played = iter(play([_candidate(live[n], depth, k) for n in numbers for k in range(candidates)]))
        for n in numbers:
            tried = [next(played) for _ in range(candidates)]
            usable = [episode for episode in tried if episode.scored]
            scored += usable
            if not usable:
                came_to[n] = tried[0]
                del live[n]
                continue
            best = max(usable, key=_score) if carry == "best" else usable[0]
            place = len(live[n].settled)
            live[n] = _Branch(live[n].attempt, best.actions[: place + 1])
            if len(best.actions) <= place + 1 and best.status != "paused":
                came_to[n] = best
                del live[n]
        depth += 1
    return [came_to[n] for n in range(len(attempts))], scored


def crossed(play: PlayMany, attempts: Sequence[Attempt], episodes: Sequence[Episode]) -> list[Episode]:
    """Every tuple of the agents' samples at a task that has not been played yet, scored by the environment.

    Raises:
        RunError: the game has several steps, or somebody sees somebody.
    """
    groups: dict[tuple[str, str], list[tuple[Attempt, Episode]]] = {}
    for attempt, episode in zip(attempts, episodes, strict=True):
        if episode.scored:
            _check_crossable(episode)
            groups.setdefault((attempt.stream, attempt.task.id), []).append((attempt, episode))
    wanted = []
    for group in groups.values():
        attempt, first = group[0]
        for choice in product(range(len(group)), repeat=len(first.actions)):
            if len(set(choice)) > 1:
                actions = [group[index][1].actions[place] for place, index in enumerate(choice)]
                name = "-".join(map(str, choice))
                wanted.append(
                    replace(attempt, stream=f"{attempt.stream}/cross/{name}", replay=_replay(attempt, first, actions))
                )
    return play(wanted)


def _check_crossable(episode: Episode) -> None:
    if len(episode.transitions) > 1 or any(action.sees for action in episode.actions):
        raise RunError(
            "joint_mode 'cross' needs a game of one step in which nobody sees anybody: a sample that was made seeing "
            "another one does not belong to other tuples; use joint_mode = 'aligned'"
        )


def _candidate(branch: _Branch, depth: int, number: int) -> Attempt:
    attempt = branch.attempt
    origin = f"{attempt.stream} {attempt.task.id} #{attempt.sample}"
    replay = Replay(origin, attempt.stream, attempt.sample, {a.id: a for a in branch.settled}, pause=True)
    return replace(attempt, stream=f"{attempt.stream}/tree/{depth}/{number}", replay=replay)


def _replay(attempt: Attempt, episode: Episode, actions: Sequence[Action]) -> Replay:
    return Replay(episode.name, attempt.stream, attempt.sample, {action.id: action for action in actions})


def _score(episode: Episode) -> float:
    assert episode.fork is not None
    candidate = next((action for action in episode.actions if action.id == episode.fork.at), None)
    return step_score(episode, candidate) if candidate else 0.0
