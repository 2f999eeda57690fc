"""One agent alone at the token budget of the team, with a player whose attempts and their prices are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from marft.common.types import Episode, Observation, Task, Transition
from marft.config import RunSettings
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.scores import ResultRow
from marft_lab.team_evaluation.single_agent import (
    answer_role,
    build_single_agent_variants,
    compare_at_budget,
    compare_single_agent,
    find_problem,
)
from marft_lab.team_evaluation.variants import TeamVariant
from tests.benches import Plays, Told, attempt, run_of, told
from tests.helpers import settings

ALONE = TeamVariant({"a": "last", "b": "last"}, single_role="b")


def team_at(price: int, tasks: str, samples: int = 1) -> list[Episode]:
    """The team's attempts, two actions of half the price each; it never solves a task."""
    return [
        attempt(task, sample=n, roles=("a", "b"), said=("1", "2"), cost=price // 2, success=False)
        for task in tasks
        for n in range(samples)
    ]


def bench_of(
    alone: Callable[[int, str], Episode], *, price: int, tasks: str = "tu", samples: int = 1, attempts: int = 16,
    run: RunSettings | None = None,
) -> Told:  # fmt: skip
    """A team that pays a price for an attempt, and what its agent "b" does in the n-th attempt at a task alone."""

    def of(arm: TeamVariant) -> Sequence[Episode]:
        if not arm.single_role:
            return team_at(price, tasks, arm.samples)
        numbers = range(arm.first_sample, arm.first_sample + arm.samples)
        return [replace(alone(n, task), sample=n) for task in reversed(tasks) for n in reversed(numbers)]

    options = ComparisonOptions(samples=samples, attempts=attempts)
    return told(run or run_of("a", "b"), of, tasks, samples=samples, options=options)


def rows_of(held: Told) -> dict[str, ResultRow]:
    return {row.name: row for row in compare_at_budget(held.judge, held.judge.player, ALONE, "b alone", "b")}


class TestWhoAnswers:
    def test_it_is_whom_the_organization_names_or_the_last_that_answers(self) -> None:
        assert answer_role(run_of("a", "b")) == "b"
        assert answer_role(run_of("a", "b", "c", answering="a b")) == "c"
        agents = [{"role": role, "policy": "reasoner", "answers": role != "c"} for role in "abc"]
        policies = {"reasoner": {"model": "base"}}
        debate = {"organization": "debate", "judge": "a"}
        assert answer_role(settings(agents=agents, policies=policies)) == "b"
        assert answer_role(settings(agents=agents, policies=policies, team=debate)) == "a"

    def test_agents_of_a_program_cannot_be_asked_alone(self) -> None:
        program: Any = SimpleNamespace(team=SimpleNamespace(writes_prompts=True))
        assert find_problem(program).startswith("the team is a program")
        assert find_problem(run_of("a", "b")) == ""

    def test_it_is_asked_trained_and_untuned_where_that_is_not_the_same(self) -> None:
        run = run_of("a", "b")
        assert build_single_agent_variants(run, {"a": "last", "b": "best"}) == {
            "b alone": TeamVariant({"a": "last", "b": "best"}, single_role="b"),
            "b alone, untuned": TeamVariant({"a": "base", "b": "base"}, single_role="b"),
        }
        assert [*build_single_agent_variants(run, {"a": "last", "b": "base"})] == ["b alone"]
        assert [*build_single_agent_variants(run_of("a", "b", frozen="b"), {"a": "last"})] == ["b alone"]

    def test_each_of_them_is_held_against_the_team(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=20), price=20)
        assert [(row.part, row.name) for row in compare_single_agent(held.judge)] == [
            ("single", "b alone"), ("single", "b alone, untuned"),
        ]  # fmt: skip
        assert [arm.weights for arm in held.player.played if arm.single_role] == [
            {"a": "last", "b": "last"}, {"a": "base", "b": "base"},
        ]  # fmt: skip


class TestBudget:
    def test_so_many_attempts_are_made_as_the_teams_tokens_pay_for(self) -> None:
        """The team takes 100 tokens. First attempts cost 30 and 20, so 4 are made; the last is dear, so 3 count."""
        cost = {"t": [30, 30, 30, 60], "u": [20, 20, 20, 20]}
        solved = {"t": [False, False, True, True], "u": [True, False, False, True]}
        said = {"t": ["1", "1", "9", "9"], "u": ["8", "8", "2", "8"]}

        def alone(n: int, task: str) -> Episode:
            success = solved[task][n]
            return attempt(
                task, roles=("b",), said=(said[task][n],), cost=cost[task][n], success=success, reward=2.0 * success
            )

        held = bench_of(alone, price=100)
        rows = rows_of(held)
        assert [*rows] == ["b alone", "b alone, best of 3 (verifier)", "b alone, majority of 3"]
        assert {row.part for row in rows.values()} == {"single"}
        each, chosen, vote = rows.values()
        assert (each.values["accuracy"].value, each.tokens, each.attempts) == (4 / 8, 230 / 8, 1)
        assert (chosen.values["accuracy"].value, chosen.values["reward"].value) == (1.0, 2.0)
        assert (chosen.tokens, chosen.attempts, chosen.tasks, chosen.failed) == ((90 + 60) / 2, 3, 2, 0)
        assert chosen.values["accuracy"].difference == 1.0
        assert vote.values["accuracy"].value == 0.5  # "1" is wrong, and the first "8" is right
        assert (vote.tokens, vote.attempts) == ((90 + 60) / 2, 3)
        assert held.notes == []
        assert held.expected == {"single b alone": 4 * 2}
        assert [(arm.first_sample, arm.samples) for arm in held.player.played if arm.single_role] == [(0, 1), (1, 3)]

    def test_attempts_that_are_made_anyway_are_the_first_of_those(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=10), price=50, samples=2)
        assert "b alone, best of 5 (verifier)" in rows_of(held)
        assert [(arm.first_sample, arm.samples) for arm in held.player.played if arm.single_role] == [(0, 2), (2, 3)]
        assert held.expected == {"single b alone": 5 * 2}

    def test_where_the_first_attempts_are_all_that_is_paid_for_no_more_are_played(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=10), price=30, samples=3)
        assert "b alone, best of 3 (verifier)" in rows_of(held)
        assert [(arm.first_sample, arm.samples) for arm in held.player.played if arm.single_role] == [(0, 3)]
        assert held.notes == []

    def test_more_attempts_than_are_allowed_are_not_made_and_that_is_said(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=10), price=50, attempts=3)
        assert "b alone, best of 3 (verifier)" in rows_of(held)
        assert held.expected == {"single b alone": 3 * 2}
        assert held.notes == [
            ("single", "b alone: the team's tokens would pay for 5 attempts, and it has 3 (--attempts)")
        ]

    def test_who_is_dearer_than_the_team_has_one_attempt_all_the_same(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=51, success=True), price=50, samples=2)
        rows = rows_of(held)
        assert [*rows] == ["b alone"]
        assert rows["b alone"].values["accuracy"].value == 1.0
        assert held.expected == {"single b alone": 2 * 2}
        assert held.notes == [
            ("single", "one attempt of b alone takes more tokens than the team's: it has one all the same")
        ]

    def test_at_the_teams_price_there_is_one_attempt_and_nothing_to_choose(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=50), price=50)
        assert [*rows_of(held)] == ["b alone"]
        assert held.notes == []

    def test_two_attempts_are_enough_to_choose_from(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=25), price=50)
        assert [*rows_of(held)] == ["b alone", "b alone, best of 2 (verifier)", "b alone, majority of 2"]

    def test_the_price_is_the_mean_over_tasks_of_each_tasks_mean(self) -> None:
        """Of "t" one attempt of the team failed: so its tasks count alike, (40 + 80) / 2, and not its attempts."""

        def of(arm: TeamVariant) -> Sequence[Episode]:
            if arm.single_role:
                return [
                    attempt(t, sample=arm.first_sample + n, roles=("b",), cost=20)
                    for t in "tu"
                    for n in range(arm.samples)
                ]
            failed = attempt("t", cost=999, status="failed")
            return [attempt("t", cost=40), failed, attempt("u", cost=80), attempt("u", sample=1, cost=80)]

        held = told(run_of("a", "b"), of, "tu", samples=2)
        assert "b alone, best of 3 (verifier)" in rows_of(held)

    def test_where_no_attempt_could_be_scored_there_is_no_choice(self) -> None:
        held = bench_of(lambda n, task: attempt(task, roles=("b",), status="failed"), price=50)
        rows = rows_of(held)
        assert [*rows] == ["b alone"]
        assert (rows["b alone"].failed, rows["b alone"].tasks) == (2, 0)
        assert (held.expected, held.notes) == ({"single b alone": 2}, [])  # nor is it said to be dear

    def test_failures_of_all_attempts_are_counted_beside_what_was_chosen(self) -> None:
        def alone(n: int, task: str) -> Episode:
            return attempt(task, roles=("b",), cost=10, status="failed" if (n, task) == (2, "u") else "terminated")

        rows = rows_of(bench_of(alone, price=40))
        assert [row.failed for row in rows.values()] == [1, 1, 1]
        assert [row.tasks for row in rows.values()] == [2, 2, 2]


class TestVote:
    def test_of_several_steps_no_majority_is_taken(self) -> None:
        steps = (Transition(Observation("?"), 0.0),) * 2
        held = bench_of(
            lambda n, task: attempt(task, roles=("b",), cost=25, transitions=steps if task == "u" else steps[:1]),
            price=50,
        )
        assert [*rows_of(held)] == ["b alone", "b alone, best of 2 (verifier)"]
        assert held.notes == [("single", "no majority is taken: an episode of several steps has no one answer")]

    def test_the_environments_own_canonical_form_is_asked_with_the_whole_task(self) -> None:
        """Only the task's data say that 1/2 and 0.5 are one answer; recorded episodes do not hold them."""

        def canonical(task: Task, text: str) -> str:
            return str(task.data["same"].get(text, text))

        run = run_of("a", "b").model_copy(update={"environment": SimpleNamespace(canonical=canonical)})
        said = ("7", "1/2", "0.5")
        held = bench_of(
            lambda n, task: attempt(task, roles=("b",), said=(said[n],), cost=10, success=n == 1),
            price=30, tasks="t", run=run,
        )  # fmt: skip
        held.player.tasks = [Task("t", "?", {"same": {"0.5": "1/2"}})]
        assert rows_of(held)["b alone, majority of 3"].values["accuracy"].value == 1.0

    def test_ties_are_drawn_for_each_task_by_the_recipes_seed(self) -> None:
        tasks = "abcdefghijkl"

        def winners(seed: int) -> float:
            run = run_of("a", "b").model_copy(update={"seed": seed})
            held = bench_of(
                lambda n, task: attempt(task, roles=("b",), said=(str(n),), cost=10, reward=2.0**tasks.index(task) * n),
                price=20, tasks=tasks, run=run,
            )  # fmt: skip
            return rows_of(held)["b alone, majority of 2"].values["reward"].value

        assert winners(1) == winners(1)
        assert len({winners(seed) for seed in range(4)}) == 4
        assert all(0 < winners(seed) < sum(2.0**n for n in range(12)) / 12 for seed in range(4))


def test_another_runs_single_agent_is_played_by_its_own_player() -> None:
    held = bench_of(lambda n, task: attempt(task, roles=("b",), cost=50), price=50)
    theirs = Plays(held.player.tasks, lambda arm: [attempt(task, roles=("z",), cost=50, reward=3.0) for task in "tu"])
    (row,) = compare_at_budget(held.judge, theirs, TeamVariant({"z": "last"}), "runs/z", "z")  # type: ignore[arg-type]
    assert (row.name, row.values["reward"].value, row.values["reward"].difference) == ("runs/z", 3.0, 3.0)
    assert (len(theirs.played), held.expected) == (1, {"single runs/z": 2})
