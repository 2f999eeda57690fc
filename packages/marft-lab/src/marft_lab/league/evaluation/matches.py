"""Matches between every pair of versions; each start is played twice with swapped sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations

import numpy as np

from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.config.consulting import without_helpers
from marft.config.pools import LATER
from marft.config.run import RunSettings
from marft.envs.tasks import tasks_of
from marft.evaluation.evaluate import Advance
from marft.rollout.rollouts import open_rollouts
from marft.runs.folder import RunFolder
from marft_envs.textarena.environment import TextArena
from marft_lab.league.evaluation.ratings import Rating, Tally, ratings
from marft_lab.league.evaluation.versions import casting, sides_of, together, versions_of


@dataclass(frozen=True, slots=True)
class Pairing:
    """Match results of two versions, from the first version's view, in total and by side."""

    tally: Tally
    on_first_side: Tally
    on_second_side: Tally
    points: float  # mean reward of the first version
    failed: int  # number of matches without a score


@dataclass(frozen=True, slots=True)
class League:
    """A run's versions, oldest first, with ratings and results per pair."""

    run: str
    versions: Sequence[str]
    ratings: Sequence[Rating]
    pairings: Sequence[Pairing]
    notes: Sequence[str] = field(default_factory=tuple)
    exploitability: Sequence[float | None] = ()  # exploitability of each version, if the game can compute it

    def score(self, mine: int, theirs: int) -> float | None:
        """Return a version's score against an opponent, with a draw as one half; None without matches.

        Args:
            mine: index of the version.
            theirs: index of the opponent.
        """
        for pairing in self.pairings:
            tally = pairing.tally
            if tally.matches and (tally.first, tally.second) == (mine, theirs):
                return tally.score
            if tally.matches and (tally.first, tally.second) == (theirs, mine):
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
                [self.score(mine, theirs) for theirs in range(len(self.versions))] for mine in range(len(self.versions))
            ],
            "pairings": [asdict(pairing) for pairing in self.pairings],
            "notes": list(self.notes),
        }


def league_of(run: RunSettings, folder: RunFolder, matches: int, most: int, advance: Advance) -> League:
    """Play every pair of a run's versions on held-out tasks, with the sampling settings of the agents.

    Args:
        run: settings of the run.
        folder: run folder.
        matches: matches per pair; an even number, half of them on each side.
        most: maximum number of versions.
        advance: progress callback.

    Raises:
        ValueError: the game has not exactly two sides, the run has fewer than two versions, or no match could be
            scored.
    """
    if matches < 2 or matches % 2:
        raise ValueError(f"matches = {matches}: every start is played from both sides; give an even number")
    sides = sides_of(run)
    versions = versions_of(run, folder, most)
    names, tasks = list(versions), tasks_of(run.environment, "test")
    pairs = list(combinations(range(len(names)), 2))
    if not pairs:
        raise ValueError(f"{folder.path} has one version alone; train it further, or allow for more")
    advance(len(pairs) * matches)
    attempts = [
        attempt for pair in pairs for attempt in attempts_of(run, sides, tasks, [names[n] for n in pair], matches)
    ]
    with open_rollouts(without_helpers(together(run, versions))) as rollouts:
        episodes = rollouts.play(attempts, on_done=lambda _: advance())
    pairings = [
        pairing_of(pair, sides[0], episodes[number * matches : (number + 1) * matches])
        for number, pair in enumerate(pairs)
    ]
    failed = sum(pairing.failed for pairing in pairings)
    if not any(pairing.tally.matches for pairing in pairings):
        raise ValueError(f"no match could be scored: {episodes[0].error}")
    notes = [f"{failed} of {len(episodes)} matches could not be scored, and count for nobody"] if failed else []
    rated = ratings(len(names), [pairing.tally for pairing in pairings])
    exploited = _exploitability(run, names, episodes)
    return League(folder.path.resolve().name, names, rated, pairings, notes, exploited)


def _exploitability(run: RunSettings, names: Sequence[str], episodes: Sequence[Episode]) -> list[float | None]:
    """Return each version's exploitability, from its choice probabilities over the matches."""
    if not isinstance(run.environment, TextArena):
        return []
    decisions: dict[str, list[tuple[str, Sequence[float]]]] = {name: [] for name in names}
    for episode in episodes:
        for action in episode.actions:
            version = action.policy.partition(LATER)[2]
            if action.choice and version and action.step < len(episode.transitions):
                shown = episode.transitions[action.step].observation.seen_by(action.agent)
                decisions[version].append((shown, np.exp(action.choice.log_probs).tolist()))
    found = [run.environment.exploitability(decisions[name]) for name in names]
    return found if any(one is not None for one in found) else []


def attempts_of(
    run: RunSettings, sides: Sequence[Sequence[str]], tasks: Sequence[Task], pair: Sequence[str], matches: int
) -> list[Attempt]:
    """Return the matches of a pair: the same starts, with the first version on each side once."""
    made = []
    for swapped in (False, True):
        seated = list(reversed(pair)) if swapped else list(pair)
        played = casting(run, sides, seated)
        for number in range(matches // 2):
            task, sample = tasks[number % len(tasks)], number // len(tasks)
            made.append(Attempt(task, f"league/{seated[0]} {seated[1]}", sample, policies=played))
    return made


def pairing_of(pair: tuple[int, int], side: Sequence[str], episodes: Sequence[Episode]) -> Pairing:
    """Return a pair's match results.

    Args:
        pair: indices of the two versions.
        side: roles of the first side, which the first version plays in the first half of the episodes.
        episodes: episodes of the matches.
    """
    half = len(episodes) // 2
    mine = [_earned(episode, side) for episode in episodes[:half]]
    mine += [None if (earned := _earned(episode, side)) is None else -earned for episode in episodes[half:]]
    scored = [earned for earned in mine if earned is not None]
    return Pairing(
        _tally(pair, mine), _tally(pair, mine[:half]), _tally(pair, mine[half:]),
        sum(scored) / len(scored) if scored else 0.0, len(mine) - len(scored),
    )  # fmt: skip


def _earned(episode: Episode, side: Sequence[str]) -> float | None:
    """Return a side's reward; None for a match without a score."""
    if not episode.scored:
        return None
    return episode.total_reward + sum(t.agent_rewards.get(side[0], 0.0) for t in episode.transitions)


def _tally(pair: tuple[int, int], earned: Sequence[float | None]) -> Tally:
    def count(holds: Callable[[float], bool]) -> int:
        return sum(one is not None and holds(one) for one in earned)

    return Tally(*pair, won=count(lambda e: e > 0), drawn=count(lambda e: e == 0), lost=count(lambda e: e < 0))
