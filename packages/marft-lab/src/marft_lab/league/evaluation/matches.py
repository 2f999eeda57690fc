"""Matches between every pair of versions of a run; each start is played twice with swapped sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from marft.agents.game import Attempt
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.helpers import without_helpers
from marft.config.models import VERSION_SEPARATOR, PolicySettings, opponent_pools
from marft.config.run import RunSettings
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import ProgressCallback
from marft.evaluation.session import BASE
from marft.rollout.local_runner import open_rollout_runner
from marft.runs.run_folder import RunFolder
from marft_envs.textarena.environment import TextArena
from marft_lab.league.evaluation.ratings import EloRating, MatchRecord, fit_ratings
from marft_lab.league.pool import find_redundant
from marft_lab.league.rollout_source import FOLDER

# adapter of each trained policy, by version name; None for the untuned policy
Versions = dict[str, dict[str, Path | None]]


def find_versions(run: RunSettings, folder: RunFolder, max_versions: int) -> Versions:
    """Return the untuned base, the checkpoints, and earlier versions from the newest checkpoint's pool.

    At most ``max_versions`` versions are returned, spread over the run, with the first and the newest version.

    Raises:
        UserError: the run has no checkpoint, or trains policies without adapters.
    """
    full_policies = [name for name in run.trained_policies if run.policies[name].train != "lora"]
    if full_policies:
        raise UserError(
            f"policies.{full_policies[0]} is tuned whole, and versions that play together are adapters; set lora"
        )
    saved = folder.saved_steps()
    if not saved:
        raise UserError(f"{folder.path} has no checkpoint yet: train it for some steps (checkpoints.every)")
    by_step: dict[int, dict[str, Path | None]] = {0: dict.fromkeys(run.trained_policies)}
    learners = set(opponent_pools(run).values())
    if learners == set(run.trained_policies):
        for path in (saved[-1] / FOLDER).glob("step_*"):
            by_step[_parse_step(path)] = dict.fromkeys(learners, path)
    for path in saved:
        if _parse_step(path):
            by_step[_parse_step(path)] = {name: path / "policies" / name for name in run.trained_policies}
    steps = sorted(by_step)
    while len(steps) > max_versions:
        del steps[find_redundant(steps)]
    return {f"step_{step:06d}" if step else BASE: by_step[step] for step in steps}


def game_sides(run: RunSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles on each of the game's two sides.

    Raises:
        UserError: the game has not exactly two sides, or the sides cannot be swapped.
    """
    environment = run.environment
    sides = [tuple(side) for side in environment.opposing_sides]
    if environment.opponent_roles:
        own_side = tuple(agent.role for agent in run.agents if agent.role not in environment.opponent_roles)
        sides = [own_side, tuple(environment.opponent_roles)]
    if len(sides) != 2:
        raise UserError(
            f"environment {environment.name!r}: a league is of games between two sides, and this recipe's has "
            f"{len(sides) or 'none'}; a text game with opponent = 'self', 'frozen' or 'pool' has two"
        )
    if environment.opponent_roles and len(sides[0]) != len(sides[1]):
        raise UserError("environment.seats: versions change sides, so both need as many agents; add those that lack")
    return sides[0], sides[1]


def combine_versions(run: RunSettings, versions: Versions) -> RunSettings:
    """Return the recipe with every version of its trained policies as a separate frozen policy, and without pools."""
    policies: dict[str, PolicySettings] = {
        name: policy.model_copy(update={"train": "frozen", "pool": None, **({"adapter": ""} if policy.pool else {})})
        for name, policy in run.policies.items()
    }
    for version, adapters in versions.items():
        for name, path in adapters.items():
            adapter = run.policies[name].adapter if path is None else str(path)
            policies[f"{name}{VERSION_SEPARATOR}{version}"] = policies[name].model_copy(update={"adapter": adapter})
    return run.model_copy(update={"policies": policies})


def assign_policies(run: RunSettings, sides: Sequence[Sequence[str]], versions: Sequence[str]) -> Mapping[str, str]:
    """Return the policy of each role, given the version on each side.

    A non-learning opponent role gets the policy of the learning side's agent at the same position.
    """
    role_policies = {agent.role: agent.policy for agent in run.agents}
    assignment: dict[str, str] = {}
    for side, version in zip(sides, versions, strict=True):
        for position, role in enumerate(side):
            policy = (
                role_policies[sides[0][position]] if role in run.environment.opponent_roles else role_policies[role]
            )
            assignment[role] = f"{policy}{VERSION_SEPARATOR}{version}" if policy in run.trained_policies else policy
    return assignment


def _parse_step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


@dataclass(frozen=True, slots=True)
class PairResult:
    """Match results of two versions, from the first version's view, in total and by side."""

    tally: MatchRecord
    on_first_side: MatchRecord
    on_second_side: MatchRecord
    points: float  # mean reward of the first version
    failed: int  # number of matches without a score


@dataclass(frozen=True, slots=True)
class LeagueResult:
    """A run's versions, oldest first, with ratings and results per pair."""

    run: str
    versions: Sequence[str]
    ratings: Sequence[EloRating]
    pairings: Sequence[PairResult]
    notes: Sequence[str] = field(default_factory=tuple)
    exploitability: Sequence[float | None] = ()  # exploitability of each version, if the game can compute it

    def score(self, version: int, opponent: int) -> float | None:
        """Return a version's score against an opponent, with a draw as one half; None without matches.

        Args:
            version: index of the version.
            opponent: index of the opponent.
        """
        for pairing in self.pairings:
            tally = pairing.tally
            if tally.matches and (tally.first, tally.second) == (version, opponent):
                return tally.score
            if tally.matches and (tally.first, tally.second) == (opponent, version):
                return 1.0 - tally.score
        return None

    def as_json(self) -> dict[str, object]:
        """Return the league as JSON data."""
        return {
            "run": self.run,
            "versions": list(self.versions),
            "ratings": [asdict(rating) for rating in self.ratings],
            "exploitability": list(self.exploitability),
            "scores": [
                [self.score(version, opponent) for opponent in range(len(self.versions))]
                for version in range(len(self.versions))
            ],
            "pairings": [asdict(pairing) for pairing in self.pairings],
            "notes": list(self.notes),
        }


def play_league(
    run: RunSettings, folder: RunFolder, matches: int, max_versions: int, advance: ProgressCallback
) -> LeagueResult:
    """Play every pair of a run's versions on held-out tasks, with the sampling settings of the agents.

    Args:
        run: settings of the run.
        folder: run folder.
        matches: matches per pair; an even number, half of them on each side.
        max_versions: maximum number of versions.
        advance: progress callback.

    Raises:
        UserError: the game has not exactly two sides, the run has fewer than two versions, or no match could be
            scored.
    """
    if matches < 2 or matches % 2:
        raise UserError(f"matches = {matches}: every start is played from both sides; give an even number")
    sides = game_sides(run)
    versions = find_versions(run, folder, max_versions)
    names, tasks = list(versions), read_tasks(run.environment, "test")
    pairs = list(combinations(range(len(names)), 2))
    if not pairs:
        raise UserError(f"{folder.path} has one version alone; train it further, or allow for more")
    advance(len(pairs) * matches)
    attempts = [
        attempt for pair in pairs for attempt in pair_attempts(run, sides, tasks, [names[n] for n in pair], matches)
    ]
    with open_rollout_runner(without_helpers(combine_versions(run, versions))) as rollouts:
        episodes = rollouts.play(attempts, on_done=lambda _: advance())
    pair_results = [
        score_pair(pair, sides[0], episodes[number * matches : (number + 1) * matches])
        for number, pair in enumerate(pairs)
    ]
    failed = sum(pair_result.failed for pair_result in pair_results)
    if not any(pair_result.tally.matches for pair_result in pair_results):
        raise UserError(f"no match could be scored: {episodes[0].error}")
    notes = [f"{failed} of {len(episodes)} matches could not be scored, and count for nobody"] if failed else []
    version_ratings = fit_ratings(len(names), [pair_result.tally for pair_result in pair_results])
    exploitability = _compute_exploitability(run, names, episodes)
    return LeagueResult(folder.path.resolve().name, names, version_ratings, pair_results, notes, exploitability)


def _compute_exploitability(run: RunSettings, names: Sequence[str], episodes: Sequence[Episode]) -> list[float | None]:
    """Return each version's exploitability, from its choice probabilities over the matches."""
    if not isinstance(run.environment, TextArena):
        return []
    decisions: dict[str, list[tuple[str, Sequence[float]]]] = {name: [] for name in names}
    for episode in episodes:
        for action in episode.actions:
            version = action.policy.partition(VERSION_SEPARATOR)[2]
            if action.choice and version and action.step < len(episode.transitions):
                observation = episode.transitions[action.step].observation.for_role(action.agent)
                decisions[version].append((observation, np.exp(action.choice.log_probs).tolist()))
    values = [run.environment.exploitability(decisions[name]) for name in names]
    return values if any(value is not None for value in values) else []


def pair_attempts(
    run: RunSettings, sides: Sequence[Sequence[str]], tasks: Sequence[Task], pair: Sequence[str], matches: int
) -> list[Attempt]:
    """Return the matches of a pair: the same starts, with the first version on each side once."""
    attempts = []
    for swapped in (False, True):
        side_versions = list(reversed(pair)) if swapped else list(pair)
        policies = assign_policies(run, sides, side_versions)
        for number in range(matches // 2):
            task, sample = tasks[number % len(tasks)], number // len(tasks)
            attempts.append(Attempt(task, f"league/{side_versions[0]} {side_versions[1]}", sample, policies=policies))
    return attempts


def score_pair(pair: tuple[int, int], side: Sequence[str], episodes: Sequence[Episode]) -> PairResult:
    """Return a pair's match results.

    Args:
        pair: indices of the two versions.
        side: roles of the first side, which the first version plays in the first half of the episodes.
        episodes: episodes of the matches.
    """
    half = len(episodes) // 2
    rewards = [_side_reward(episode, side) for episode in episodes[:half]]
    rewards += [None if (reward := _side_reward(episode, side)) is None else -reward for episode in episodes[half:]]
    scored = [reward for reward in rewards if reward is not None]
    return PairResult(
        _count_results(pair, rewards),
        _count_results(pair, rewards[:half]),
        _count_results(pair, rewards[half:]),
        sum(scored) / len(scored) if scored else 0.0,
        len(rewards) - len(scored),
    )


def _side_reward(episode: Episode, side: Sequence[str]) -> float | None:
    """Return a side's reward; None for a match without a score."""
    if not episode.is_scored:
        return None
    return episode.total_reward + sum(t.agent_rewards.get(side[0], 0.0) for t in episode.transitions)


def _count_results(pair: tuple[int, int], rewards: Sequence[float | None]) -> MatchRecord:
    def count(holds: Callable[[float], bool]) -> int:
        return sum(reward is not None and holds(reward) for reward in rewards)

    return MatchRecord(*pair, won=count(lambda e: e > 0), drawn=count(lambda e: e == 0), lost=count(lambda e: e < 0))
