"""Policies in each other's seats, and checkpoints that play together, with a player whose rewards are known."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.config import RunSettings
from marft_lab.team_evaluation.policy_swaps import (
    compare_swaps,
    describe_permutation,
    policy_permutations,
    run_cross_play,
    swappable_policies,
)
from marft_lab.team_evaluation.variants import TeamVariant
from tests.benches import attempt, run_of, told
from tests.helpers import settings


def strength(arm: TeamVariant) -> list[Episode]:
    """A policy of ``last`` earns a reward of its own: "a" 1, "b" 10, "c" 100. Each out of its seat costs a half."""
    worth = {"a": 1.0, "b": 10.0, "c": 100.0}
    reward = sum(worth[policy] for policy, weights in arm.weights.items() if weights == "last")
    moved = sum(one != two for one, two in arm.policy_swaps.items())
    return [attempt(task, sample=n, reward=reward - moved / 2) for task in "tuv" for n in range(arm.samples)]


def shared() -> RunSettings:
    agents = [{"role": "a", "policy": "both"}, {"role": "b", "policy": "both", "answers": True}]
    return settings(policies={"both": {"model": "base"}}, agents=agents)


class TestOrders:
    def test_of_three_policies_they_are_all_but_the_teams_own(self) -> None:
        found = ["".join(order[one] for one in "abc") for order in policy_permutations(["a", "b", "c"])]
        assert found == ["acb", "bac", "bca", "cab", "cba"]

    def test_of_four_they_are_the_pairs(self) -> None:
        assert [describe_permutation(order) for order in policy_permutations(["a", "b", "c", "d"])] == [
            "a ⇄ b", "a ⇄ c", "a ⇄ d", "b ⇄ c", "b ⇄ d", "c ⇄ d",
        ]  # fmt: skip
        assert policy_permutations(["a"]) == []


class TestSwaps:
    def test_only_trained_policies_of_one_model_take_each_others_seats(self) -> None:
        assert swappable_policies(run_of("a", "b", "c", "d", frozen="d", other_model="b")) == [["a", "c"], ["b"]]
        assert swappable_policies(shared()) == [["both"]]

    def test_each_order_is_played_with_the_teams_weights_and_held_against_it(self) -> None:
        held = told(run_of("a", "b", "c", other_model="b"), strength, "tuv", samples=2)
        (row,) = compare_swaps(held.judge)
        assert (row.part, row.name, row.tasks) == ("swap", "swapped: a ⇄ c", 3)
        assert (row.values["reward"].value, row.values["reward"].difference) == (110.0, -1.0)
        arms = held.player.played
        assert [arm.policy_swaps for arm in arms if arm.policy_swaps] == [{"a": "c", "c": "a"}]
        assert all(arm.weights == {"a": "last", "b": "last", "c": "last"} for arm in arms)
        assert held.expected == {"swap": 6}
        assert [text for _, text in held.notes if "different models" in text] == [
            "policies of different models are not swapped: prompts and tools are made for one model"
        ]


class TestCrossPlay:
    def test_each_policys_checkpoints_play_in_teams_of_each_other_checkpoint(self) -> None:
        held = told(run_of("a", "b", "c"), strength, "tuv", samples=2, crossed=["base", "last"])
        first, _, third = run_cross_play(held.judge)
        assert (first.policy, first.others, list(first.checkpoints)) == ("a", "b, c", ["base", "last"])
        assert (third.policy, third.others) == ("c", "a, b")

        def rewards(rows: Sequence[Sequence[object]]) -> list[list[float]]:
            return [[row.values["reward"].value for row in some] for some in rows]  # type: ignore[attr-defined]

        assert rewards(first.rows) == [[0.0, 110.0], [1.0, 111.0]]
        assert rewards(third.rows) == [[0.0, 11.0], [100.0, 111.0]]
        assert [[row.name for row in some] for some in first.rows] == [
            ["a of base, the others of base", "a of base, the others of last"],
            ["a of last, the others of base", "a of last, the others of last"],
        ]
        row = first.rows[0][1]
        assert (row.part, row.tasks, row.values["reward"].difference) == ("swap", 3, -1.0)
        assert held.expected == {"cross-play": 3 * 4 * 2 * 3}  # matrices, pairs of checkpoints, attempts, tasks

    def test_of_two_policies_one_matrix_says_it_all(self) -> None:
        held = told(run_of("a", "b"), strength, "tuv", crossed=["base", "last", "best"])
        assert [(matrix.policy, matrix.others) for matrix in run_cross_play(held.judge)] == [("a", "b")]
        assert held.expected == {"cross-play": 9 * 3}

    def test_one_policy_or_one_checkpoint_crosses_nothing(self) -> None:
        for run, crossed in ((run_of("a", "b"), ["last"]), (run_of("a", "b", frozen="b"), ["base", "last"])):
            held = told(run, strength, "tuv", crossed=crossed)
            assert run_cross_play(held.judge) == []
            assert (held.expected, held.player.played) == ({}, [])


class TestNotes:
    @staticmethod
    def of(run: RunSettings, crossed: Sequence[str] = ("base", "last")) -> list[str]:
        held = told(run, lambda _: [attempt(success=True)], crossed=crossed)
        compare_swaps(held.judge)
        assert {part for part, _ in held.notes} <= {"swap"}
        return [text for _, text in held.notes]

    def test_a_team_of_trained_policies_of_one_model_has_none(self) -> None:
        assert self.of(run_of("a", "b")) == self.of(run_of("a", "b", "c")) == []

    def test_why_agents_are_not_swapped_is_said_of_each(self) -> None:
        few = "fewer than two policies were trained: there is nobody to swap with, nor to cross"
        assert self.of(shared()) == [
            "a and b share the policy both: they cannot swap, and nothing would change", few,
        ]  # fmt: skip
        same = "not trained, so the same in every checkpoint, and not swapped"
        assert self.of(run_of("a", "b", "c", frozen="a c")) == [f"a, c: {same}", few]
        assert self.of(run_of("a", "b", "c", frozen="c")) == [f"c: {same}"]

    def test_one_checkpoint_is_crossed_with_nothing(self) -> None:
        one = "the checkpoints that were named are one: there is nothing to cross"
        assert self.of(run_of("a", "b"), ["last"]) == [one]
