"""Candidate trees: sample several candidates for every action from the same state, continue from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from marft.agents.game import Attempt, Replay
from marft.common.types import Action, Episode
from marft.rollout.fork_plans.interface import ForkContext, PlayFunction, resampled_action, select_on_policy


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Fork mode with ``candidates`` samples of every action; the best or the first continues."""

    missing_note: ClassVar[str] = ": its candidates are the actions that happen to share a state"

    candidates: int
    carry: Literal["best", "first"]

    def play(
        self, play: PlayFunction, attempts: Sequence[Attempt], step: ForkContext
    ) -> tuple[list[Episode], list[Episode]]:
        """Grow the trees → attempts, all episodes.

        The attempts are the on-policy episodes. If a step has no on-policy episode, the final episodes of the trees
        take their place.
        """
        final_episodes, all_episodes = grow_tree(
            play, attempts, self.candidates, self.carry, lambda tree_episode: _step_score(tree_episode, step)
        )
        on_policy = select_on_policy(all_episodes) or final_episodes
        for episode in on_policy:
            step.on_done(episode)
        return on_policy, all_episodes


def step_score(episode: Episode, action: Action) -> float:
    """Return the reward of the action's step, for the team plus the acting agent."""
    transition = episode.transitions[action.step]
    return transition.reward + transition.agent_rewards.get(action.agent, 0.0)


def _step_score(episode: Episode, step: ForkContext) -> float:
    candidate = resampled_action(episode)
    return step_score(step.rewarded([episode])[0], candidate) if candidate else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """Tree branch: attempt, chosen actions, and observations so far."""

    attempt: Attempt
    selected: tuple[Action, ...] = ()
    observations: tuple[str, ...] = ()

    def extend(self, chosen: Episode) -> _Branch:
        """Return a branch extended by the candidate action of an episode."""
        candidate = resampled_action(chosen)
        if candidate is None:
            return self
        observations = tuple(t.observation.full_text for t in chosen.transitions[: candidate.step + 1])
        return _Branch(self.attempt, (*self.selected, candidate), observations)


def grow_tree(
    play: PlayFunction,
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
    branches = dict(enumerate(_Branch(attempt) for attempt in attempts))
    final_episodes: dict[int, Episode] = {}
    episodes: list[Episode] = []
    depth = 0
    while branches:
        numbers = list(branches)
        samples = iter(play([_candidate_attempt(branches[n], depth, k) for n in numbers for k in range(candidates)]))
        for n in numbers:
            sampled = [next(samples) for _ in range(candidates)]
            episodes += sampled
            usable = [episode for episode in sampled if episode.is_scored]
            if not usable:
                final_episodes[n] = sampled[0]
                del branches[n]
                continue
            best = max(usable, key=score) if carry == "best" else usable[0]
            branches[n] = branches[n].extend(best)
            if best.status != "paused" and {a.id for a in best.actions} <= {a.id for a in branches[n].selected}:
                final_episodes[n] = best
                del branches[n]
        depth += 1
    return [final_episodes[n] for n in range(len(attempts))], episodes


def _candidate_attempt(branch: _Branch, depth: int, number: int) -> Attempt:
    attempt = branch.attempt
    origin = f"{attempt.stream} {attempt.task.id} #{attempt.sample}"
    replayed = {action.id: action for action in branch.selected}
    replay = Replay(origin, attempt.stream, attempt.sample, replayed, observations=branch.observations, pause=True)
    return replace(attempt, stream=f"{attempt.stream}/tree/{depth}/{number}", replay=replay)
