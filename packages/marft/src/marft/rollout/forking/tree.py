"""Candidate trees: sample several candidates for every action from the same state, continue from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.rollout.forking.interface import Play, Step, as_played, candidate_of


@dataclass(frozen=True, slots=True)
class Candidates:
    """Fork mode with ``candidates`` samples of every action; the best or the first continues."""

    without: ClassVar[str] = ": its candidates are the actions that happen to share a state"

    candidates: int
    carry: Literal["best", "first"]

    def play(self, play: Play, attempts: Sequence[Attempt], step: Step) -> tuple[list[Episode], list[Episode]]:
        """Grow the trees → attempts, all episodes.

        The attempts are the on-policy episodes. If a step has no on-policy episode, the final episodes of the trees
        take their place.
        """
        came_to, everything = tree(play, attempts, self.candidates, self.carry, lambda one: _score(one, step))
        played = as_played(everything) or came_to
        for episode in played:
            step.on_done(episode)
        return played, everything


def step_score(episode: Episode, action: Action) -> float:
    """Return the reward of the action's step, for the team plus the acting agent."""
    transition = episode.transitions[action.step]
    return transition.reward + transition.agent_rewards.get(action.agent, 0.0)


def _score(episode: Episode, step: Step) -> float:
    candidate = candidate_of(episode)
    return step_score(step.rewarded([episode])[0], candidate) if candidate else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """Tree branch: attempt, chosen actions, and observations so far."""

    attempt: Attempt
    settled: tuple[Action, ...] = ()
    observations: tuple[str, ...] = ()

    def grow(self, chosen: Episode) -> _Branch:
        """Return a branch extended by the candidate action of an episode."""
        candidate = candidate_of(chosen)
        if candidate is None:
            return self
        observed = tuple(t.observation.whole for t in chosen.transitions[: candidate.step + 1])
        return _Branch(self.attempt, (*self.settled, candidate), observed)


def tree(
    play: Play,
    attempts: Sequence[Attempt],
    candidates: int,
    carry: Literal["best", "first"],
    score: Callable[[Episode], float],
) -> tuple[list[Episode], list[Episode]]:
    """Sample several candidates for every action, score them, continue from one.

    All candidates of an action start from the same state. A candidate's step is played to the end before scoring.

    Args:
        play: function that plays attempts.
        attempts: attempts to grow trees from, one tree each.
        candidates: number of candidates per action.
        carry: candidate to continue from: highest score, or first usable.
        score: function that scores the episode of a candidate.

    Returns:
        The final episode of each attempt, and all episodes played.
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


def _candidate(branch: _Branch, depth: int, number: int) -> Attempt:
    attempt = branch.attempt
    origin = f"{attempt.stream} {attempt.task.id} #{attempt.sample}"
    served = {action.id: action for action in branch.settled}
    replay = Replay(origin, attempt.stream, attempt.sample, served, observations=branch.observations, pause=True)
    return replace(attempt, stream=f"{attempt.stream}/tree/{depth}/{number}", replay=replay)
