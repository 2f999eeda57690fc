"""Fork modes: replay episodes from a chosen action, for credit assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal, Protocol, cast

from marft.agents.game import Attempt, Replay
from marft.common.errors import RunError
from marft.common.types import Action, Episode
from marft.config.algorithm import AlgorithmSettings
from marft.rollout.runner import EpisodeCallback, ignore_episode


class PlayFunction(Protocol):
    """Function that plays attempts and returns episodes in the same order.

    ``on_done`` is called with each finished episode.
    """

    def __call__(self, attempts: Sequence[Attempt], *, on_done: EpisodeCallback = ignore_episode) -> list[Episode]: ...


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
    on_done: EpisodeCallback


class ForkPlan(Protocol):
    """Mode of replaying a step's episodes from single actions, for credit assignment.

    ``missing_note`` describes the effect of missing forks on credit; empty if there is nothing to say.
    """

    missing_note: ClassVar[str]

    def play_forks(
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


@dataclass(frozen=True, slots=True)
class CounterfactualForks:
    """Fork mode that resamples every action of a trained policy ``resamples`` times."""

    missing_note: ClassVar[str] = ""

    resamples: int

    def play_forks(
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
    forks = []
    for attempt, episode in zip(attempts, episodes, strict=True):
        for action in episode.actions if episode.is_scored else ():
            for number in range(resamples if action.policy in policies else 0):
                stream = f"{attempt.stream}/fork/{action.id}/{number}"
                forks.append(replace(attempt, stream=stream, replay=build_counterfactual(attempt, episode, action)))
    return play(forks)


def find_dependents(actions: Sequence[Action], action: Action) -> set[str]:
    """Return the ids of an action and of its direct and indirect observers."""
    dependent_ids = {action.id}
    while new := {observer.id for observer in actions if dependent_ids & set(observer.sees)} - dependent_ids:
        dependent_ids |= new
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


@dataclass(frozen=True, slots=True)
class CrossProductForks:
    """Fork mode that plays each combination of samples missing from the attempts."""

    missing_note: ClassVar[str] = ""

    def play_forks(
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
                stream, replay = f"{attempt.stream}/cross/{name}", build_replay(attempt, first, actions)
                missing.append(replace(attempt, stream=stream, replay=replay))
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


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Fork mode with ``candidates`` samples of every action; the best or the first continues."""

    missing_note: ClassVar[str] = ": its candidates are the actions that happen to share a state"

    candidates: int
    carry: Literal["best", "first"]

    def play_forks(
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
