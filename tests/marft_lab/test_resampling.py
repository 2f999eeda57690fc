"""Each action sampled again: which episodes, how many forks, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from marft.common.types import Episode, Fork, Task
from marft_lab.team_evaluation.counterfactual import ActionContribution, as_json, run_counterfactual
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.variants import TeamVariant
from tests.benches import Plays, Told, attempt, run_of, told


@dataclass
class Forks(Plays):
    """A player that also says what comes of actions that are sampled again: rewards by task and agent."""

    rewards: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)
    asked: list[tuple[TeamVariant, list[Episode], int]] = field(default_factory=list)

    def play_forks(self, arm: TeamVariant, episodes: Sequence[Episode], resamples: int) -> list[Episode]:
        self.asked.append((arm, list(episodes), resamples))
        found = [attempt("t")]  # one that departs from nothing
        for episode in episodes:
            for action in episode.actions:
                for reward in self.rewards.get((episode.task.id, action.agent), []):
                    fork = Fork(episode.name, action.id)
                    failed: dict[str, Any] = (
                        {"status": "failed", "error": f"boom of {action.agent}"} if reward is None else {}
                    )
                    found.append(attempt(episode.task.id, reward=reward or 0.0, fork=fork, **failed))
        return found


def bench_of(episodes: Sequence[Episode], rewards: dict[tuple[str, str], list[float | None]], tasks: str) -> Told:
    player = Forks([Task(task, "?") for task in tasks], lambda arm: episodes, rewards=rewards)
    return told(run_of("a", "b"), player.of, tasks, samples=2, options=ComparisonOptions(resamples=2), player=player)


def both(task: str, reward: float, sample: int = 0, **changes: Any) -> Episode:
    return attempt(task, reward=reward, sample=sample, roles=("a", "b"), said=("1", "2"), **changes)


def test_first_attempts_that_were_scored_are_resampled_and_those_on_which_most_hangs_come_first() -> None:
    first, other, third = both("t", 1.0), both("u", 0.0), both("v", 1.0)
    episodes = [first, both("t", 9.0, sample=1), other, both("w", 5.0, status="failed"), third]
    rewards: dict[tuple[str, str], list[float | None]] = {
        ("t", "a"): [0.5, 0.5], ("t", "b"): [1.0, 1.0],  # 0.5 and 0
        ("u", "a"): [0.0, 0.0], ("u", "b"): [1.0, 1.0],  # 0 and −1
        ("v", "a"): [1.0, None], ("v", "b"): [0.5, 0.0],  # 0 and 0.75
    }  # fmt: skip
    held = bench_of(episodes, rewards, "tuvw")
    found = run_counterfactual(held.judge)
    assert isinstance(held.player, Forks)
    assert held.player.asked == [(held.judge.variant, [first, other, third], 2)]
    assert [episode for episode, _ in found.episodes] == [other, third, first]
    assert [[one.contribution for one in some] for _, some in found.episodes] == [[0.0, -1.0], [0.0, 0.75], [0.5, 0.0]]
    assert [(share.agent, share.actions, share.contribution.value) for share in found.shares] == [
        ("a", 3, 0.5 / 3), ("b", 3, (0.0 - 1.0 + 0.75) / 3),
    ]  # fmt: skip
    assert (found.forks, found.failed) == (13, 1)
    assert held.expected == {"counterfactual": 3 * 2 * 2}
    assert held.notes == [("counterfactual", "1 of 13 could not be scored; the first: boom of a")]


def test_who_never_acted_contributed_nothing_and_that_is_said() -> None:
    episodes = [attempt("t", reward=1.0), attempt("u", reward=0.0)]
    held = bench_of(episodes, {("t", "a"): [0.0, 0.0]}, "tu")
    found = run_counterfactual(held.judge)
    assert [(share.agent, share.actions) for share in found.shares] == [("a", 1)]
    assert [(episode.task.id, len(some)) for episode, some in found.episodes] == [("t", 1), ("u", 0)]
    assert (found.forks, found.failed) == (3, 0)
    assert held.notes == [("counterfactual", "b was never asked, and contributed nothing")]


def test_an_episode_of_which_nothing_was_resampled_hangs_on_nothing() -> None:
    held = bench_of([attempt("t", reward=1.0), attempt("u", reward=1.0)], {("u", "a"): [0.5, 0.5]}, "tu")
    assert [episode.task.id for episode, _ in run_counterfactual(held.judge).episodes] == ["u", "t"]


def test_contributions_are_written_by_episode() -> None:
    some = [ActionContribution("0/a/0", "a", 1.0, (0.0, 0.5), own=0.125)]
    assert as_json([(attempt("t", reward=1.0), some), (attempt("u"), [])]) == [
        {
            "task": "t",
            "reward": 1.0,
            "actions": [
                {
                    "action": "0/a/0", "agent": "a", "resampled": [0.0, 0.5], "contribution": 0.75, "variance": 0.25,
                    "own": 0.125,
                }
            ],
        },
        {"task": "u", "reward": 0.0, "actions": []},
    ]  # fmt: skip
