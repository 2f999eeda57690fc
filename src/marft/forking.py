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
from marft.types import Action, Episode

PlayMany = Callable[[Sequence[Attempt]], list[Episode]]


def counterfactuals(
    play: PlayMany, attempts: Sequence[Attempt], episodes: Sequence[Episode], resamples: int, policies: Sequence[str]
) -> list[Episode]:
    """For every action of the given policies, episodes in which its agent acts anew and all go on from there.

    Of the action's own step, what does not depend on it stays as it was.
    """
    return play(
        [
            replace(
                attempt,
                stream=f"{attempt.stream}/fork/{action.id}/{number}",
                replay=_replay_around(attempt, episode, action),
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


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """An attempt of a tree, the actions that it has settled on, and what was observed on the way."""

    attempt: Attempt
    settled: tuple[Action, ...] = ()
    observations: tuple[str, ...] = ()

    def grow(self, chosen: Episode) -> _Branch:
        """Settle on the candidate of an episode."""
        candidate = candidate_of(chosen)
        if candidate is None:
            return self
        observed = tuple(t.observation.text for t in chosen.transitions[: candidate.step + 1])
        return _Branch(self.attempt, (*self.settled, candidate), observed)


def tree(
    play: PlayMany,
    attempts: Sequence[Attempt],
    candidates: int,
    carry: Literal["best", "first"],
    score: Callable[[Episode], float],
) -> tuple[list[Episode], list[Episode]]:
    """Sample every action several times from the same state, score the candidates, carry one on.

    A candidate is scored by playing its step to the end, before anything is carried on.

    Returns:
        The episode that each attempt came to in the end, and all episodes that were played on the way.
    """
    live = dict(enumerate(_Branch(attempt) for attempt in attempts))
    came_to: dict[int, Episode] = {}
    played: list[Episode] = []
    depth = 0
    while live:
        numbers = list(live)
        tries = iter(play([_candidate(live[n], depth, k) for n in numbers for k in range(candidates)]))
        for n in numbers:
            tried = [next(tries) for _ in range(candidates)]
            played += tried
            usable = [episode for episode in tried if episode.scored]
            if not usable:
                came_to[n] = tried[0]
                del live[n]
                continue
            best = max(usable, key=score) if carry == "best" else usable[0]
            live[n] = live[n].grow(best)
            if best.status != "paused" and {a.id for a in best.actions} <= {a.id for a in live[n].settled}:
                came_to[n] = best
                del live[n]
        depth += 1
    return [came_to[n] for n in range(len(attempts))], played


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
        if any([a.id for a in episode.actions] != [a.id for a in first.actions] for _, episode in group):
            raise RunError(
                "joint_mode 'cross' needs a team in which the same agents act in every episode: who did not act has no "
                "sample for the other tuples; use joint_mode = 'aligned'"
            )
        for choice in product(range(len(group)), repeat=len(first.actions)):
            if len(set(choice)) > 1:
                actions = [group[sample][1].actions[number] for number, sample in enumerate(choice)]
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


def candidate_of(episode: Episode) -> Action | None:
    """The action at which an episode was forked, if it came to that."""
    assert episode.fork is not None
    return next((action for action in episode.actions if action.id == episode.fork.at), None)


def _candidate(branch: _Branch, depth: int, number: int) -> Attempt:
    attempt = branch.attempt
    origin = f"{attempt.stream} {attempt.task.id} #{attempt.sample}"
    served = {action.id: action for action in branch.settled}
    replay = Replay(origin, attempt.stream, attempt.sample, served, observations=branch.observations, pause=True)
    return replace(attempt, stream=f"{attempt.stream}/tree/{depth}/{number}", replay=replay)


def _replay_around(attempt: Attempt, episode: Episode, action: Action) -> Replay:
    anew = dependents(episode.actions, action)
    served = [a for a in episode.actions if a.step <= action.step and a.id not in anew]
    observed = [t.observation.text for t in episode.transitions[: action.step + 1]]
    return replace(_replay(attempt, episode, served), at=action.id, instead_of=action, observations=observed)


def _replay(attempt: Attempt, episode: Episode, actions: Sequence[Action]) -> Replay:
    return Replay(episode.name, attempt.stream, attempt.sample, {action.id: action for action in actions})
