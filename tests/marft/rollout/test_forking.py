"""Forks: what is played again and what is served to it, and which of what was played the policies made by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from marft.agents.game import Attempt, Replay
from marft.common.errors import RunError
from marft.common.types import Action, Episode, Fork, Observation, Task, Transition
from marft.rollout.fork_plans import (
    CandidateTree,
    CounterfactualForks,
    CrossProductForks,
    ForkContext,
    find_dependents,
    grow_tree,
    play_counterfactuals,
    play_missing,
    select_on_policy,
)
from marft.trainer.credit.counterfactual import Counterfactual
from marft.trainer.credit.tree import Tree
from tests.episodes import make_action

ONE, TWO = (Attempt(Task("t", "go"), "train/0", sample) for sample in (0, 1))


def made(attempt: Attempt, *actions: Action, steps: int = 1, **changes: Any) -> Episode:
    seen = tuple(Transition(Observation(f"after {step}"), 0.0) for step in range(steps))
    whole = Episode(attempt.task, attempt.stream, attempt.sample, actions, "terminated", seen)
    return replace(whole, **changes)


class Playing:
    """Keeps what it is asked to play."""

    def __init__(self, plays: Callable[[Attempt], Episode] = made) -> None:
        self.plays = plays
        self.asked: list[list[Attempt]] = []

    def __call__(
        self, attempts: Sequence[Attempt], *, on_done: Callable[[Episode], None] = lambda _: None
    ) -> list[Episode]:
        self.asked.append(list(attempts))
        episodes = [self.plays(attempt) for attempt in attempts]
        for episode in episodes:
            on_done(episode)
        return episodes

    def replays(self) -> list[Replay]:
        return [attempt.replay for attempt in self.asked[-1] if attempt.replay]


def step_of(done: list[Episode], *trained: str) -> ForkContext:
    return ForkContext(trained, lambda episodes: episodes, done.append)


class TestCounterfactuals:
    ACTIONS = (
        make_action("a"), make_action("b", sees=("0/a/0",), prompt=(4, 4)), make_action("c"),
        make_action("a", step=1, sees=("0/b/0",)), make_action("b", step=1, prompt=(9, 9, 9)),
        make_action("a", step=2, sees=("1/a/0",)),
    )  # fmt: skip

    def test_what_saw_an_action_depends_on_it_directly_or_not(self) -> None:
        assert find_dependents(self.ACTIONS, self.ACTIONS[0]) == {"0/a/0", "0/b/0", "1/a/0", "2/a/0"}
        assert find_dependents(self.ACTIONS, self.ACTIONS[1]) == {"0/b/0", "1/a/0", "2/a/0"}
        assert find_dependents(self.ACTIONS, self.ACTIONS[2]) == {"0/c/0"}

    def test_of_its_own_step_and_those_before_all_is_served_that_does_not_depend_on_it(self) -> None:
        play = Playing()
        play_counterfactuals(play, [TWO], [made(TWO, *self.ACTIONS, steps=3)], 2, ["b"])
        assert [attempt.stream for attempt in play.asked[0]] == [
            "train/0/fork/0/b/0/0", "train/0/fork/0/b/0/1", "train/0/fork/1/b/0/0", "train/0/fork/1/b/0/1"
        ]  # fmt: skip
        first, _, second, _ = play.replays()
        assert (first.origin, first.stream, first.sample) == ("train/0 t #1", "train/0", 1)
        assert (first.fork_id, list(first.actions), first.observations) == ("0/b/0", ["0/a/0", "0/c/0"], ["after 0"])
        assert list(second.actions) == ["0/a/0", "0/b/0", "0/c/0", "1/a/0"]
        assert (second.fork_id, second.observations) == ("1/b/0", ["after 0", "after 1"])
        assert [r.replaced_action and r.replaced_action.prompt.tolist() for r in (first, second)] == [[4, 4], [9, 9, 9]]

    def test_an_episode_that_failed_is_not_forked_and_only_attempts_are_told_of(self) -> None:
        play = Playing(
            lambda attempt: made(attempt, self.ACTIONS[0], status="failed" if attempt is TWO else "terminated")
        )
        done: list[Episode] = []
        played, everything = CounterfactualForks(2).play_forks(play, [ONE, TWO], step_of(done, "a"))
        assert [attempt.sample for attempt in play.asked[1]] == [0, 0]
        assert done == played == everything[:2]
        assert len(everything) == 4


class TestCrossed:
    @staticmethod
    def sampled(attempt: Attempt) -> Episode:
        return made(
            attempt, *(make_action(role, sample=attempt.sample, text=f"{role}{attempt.sample}") for role in "ab")
        )

    def test_every_tuple_that_was_not_made_together_is_played_in_a_stream_of_its_own(self) -> None:
        play, done = Playing(self.sampled), list[Episode]()
        other = replace(ONE, task=Task("u", "go"))
        played, everything = CrossProductForks().play_forks(play, [ONE, other, TWO], step_of(done))
        assert done == played == everything[:3]
        assert [attempt.stream for attempt in play.asked[1]] == ["train/0/cross/0-1", "train/0/cross/1-0"]
        first, second = play.replays()
        assert [a.text for a in first.actions.values()] == ["a0", "b1"]
        assert [a.text for a in second.actions.values()] == ["a1", "b0"]
        assert (first.origin, first.stream, first.sample) == ("train/0 t #0", "train/0", 0)
        assert [(attempt.task.id, attempt.sample) for attempt in play.asked[1]] == [("t", 0), ("t", 0)]

    @pytest.mark.parametrize(
        ("wrong", "needs"),
        [
            (made(TWO, make_action("a"), make_action("b"), steps=2), "a game of one step"),
            (made(TWO, make_action("a"), make_action("b", sees=("0/a/0",))), "nobody sees anybody"),
            (made(TWO, make_action("a")), "the same agents act in every episode"),
        ],
    )
    def test_what_cannot_be_crossed_is_refused_unless_it_failed_anyway(self, wrong: Episode, needs: str) -> None:
        with pytest.raises(RunError, match=needs):
            play_missing(Playing(), [ONE, TWO], [self.sampled(ONE), wrong])
        assert play_missing(Playing(), [ONE, TWO], [self.sampled(ONE), replace(wrong, status="failed")]) == []


class Growing(Playing):
    """Every action is sampled anew in turn, and its step is played to the end; a candidate is worth its number."""

    ORDER = (("a", 0), ("a", 1), ("b", 1))

    def __init__(self, failing: str = "none", ends_at: int = 9) -> None:
        super().__init__(self.grown)
        self.failing, self.ends_at = failing, ends_at

    def grown(self, attempt: Attempt) -> Episode:
        assert attempt.replay is not None
        served = list(attempt.replay.actions.values())
        number, depth = int(attempt.stream[-1]), len(served)
        last = self.ORDER[depth][1]
        fresh = [(role, step) for role, step in self.ORDER[depth:] if step == last and depth < self.ends_at]
        actions = [*served, *(make_action(role, step=step, text=f"{role}{step}.{number}") for role, step in fresh)]
        status = (
            "failed"
            if attempt.stream.startswith(self.failing)
            else "paused"
            if last == 0 < self.ends_at
            else "terminated"
        )
        seen = (
            *(Transition(Observation(f"after {step}"), 0.0) for step in range(last)),
            Transition(Observation(f"after {last}"), number),
        )
        fork = Fork(attempt.replay.origin, "{1}/{0}/0".format(*self.ORDER[depth]))
        return made(attempt, *actions, transitions=seen, status=status, fork=fork)


def grown(play: Growing, *attempts: Attempt, carry: Any = "best") -> tuple[list[Episode], list[Episode]]:
    return grow_tree(play, attempts, 3, carry, lambda episode: episode.total_reward)


class TestTree:
    def test_each_action_is_sampled_several_times_after_the_best_of_those_before(self) -> None:
        play = Growing()
        (came_to,), played = grown(play, TWO)
        assert [[attempt.stream for attempt in asked] for asked in play.asked] == [
            [f"train/0/tree/{depth}/{number}" for number in range(3)] for depth in range(3)
        ]
        replays = [attempt.replay for attempt, *_ in play.asked if attempt.replay]
        assert [[a.text for a in replay.actions.values()] for replay in replays] == [[], ["a0.2"], ["a0.2", "a1.2"]]
        assert [replay.observations for replay in replays] == [(), ("after 0",), ("after 0", "after 1")]
        assert {(r.origin, r.stream, r.sample, r.pause) for r in replays} == {("train/0 t #1", "train/0", 1, True)}
        assert [action.text for action in came_to.actions] == ["a0.2", "a1.2", "b1.2"]
        assert len(played) == 9

    def test_the_first_that_did_not_fail_is_carried_on_where_none_is_chosen(self) -> None:
        (came_to,), _ = grown(Growing(failing="train/0/tree/0/0"), ONE, carry="first")
        assert [action.text for action in came_to.actions] == ["a0.1", "a1.0", "b1.0"]

    def test_where_all_candidates_fail_the_attempt_has_come_to_that_and_others_go_on(self) -> None:
        other = replace(TWO, stream="train/1")
        play = Growing(failing="train/0/tree/1")
        (failed, came_to), played = grown(play, ONE, other)
        assert failed is played[6]
        assert failed.status == "failed"
        assert [action.text for action in came_to.actions] == ["a0.2", "a1.2", "b1.2"]
        assert [len(asked) for asked in play.asked] == [6, 6, 3]

    def test_an_episode_that_ends_before_its_candidate_is_what_was_come_to(self) -> None:
        (came_to,), played = grown(Growing(ends_at=1), ONE)
        assert came_to is played[5]
        assert [action.text for action in came_to.actions] == ["a0.2"]


def test_what_policies_made_by_themselves_are_attempts_or_whole_episodes_from_the_first_action_on() -> None:
    first, second = make_action("a"), make_action("b", index=1)
    whole = made(ONE, first, second)
    own = replace(whole, fork=Fork("x", "0/a/0"))
    later, shown = replace(own, fork=Fork("x", "0/b/0")), replace(own, status="paused")
    nobody = replace(own, actions=())
    assert select_on_policy([own, later, shown, nobody]) == [own]
    assert select_on_policy([own, whole, later]) == [whole]


def test_by_its_name_alone_a_credit_forks_as_often_as_was_published() -> None:
    assert Counterfactual().fork_plan == CounterfactualForks(resamples=2)
    assert Tree().fork_plan == CandidateTree(candidates=4, carry="best")
