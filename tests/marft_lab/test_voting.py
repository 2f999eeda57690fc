"""Several attempts of one agent, made into one answer."""

from __future__ import annotations

from marft.common.types import Task
from marft_lab.team_evaluation.single_agent import (
    answer_text,
    best_attempt,
    majority_vote,
    max_affordable,
    normalize_answer,
)
from tests.benches import attempt


def test_a_stated_answer_has_no_marks_around_it_and_single_spaces_within() -> None:
    task = Task("t", "?")
    assert normalize_answer(task, "The answer is:  __New \t  York City__ .") == "new york city"
    assert normalize_answer(task, " **.** ") is None


def test_who_says_nothing_has_the_empty_answer() -> None:
    said = attempt(roles=("a", "b", "a"), said=("first", "other", "last"))
    assert [answer_text(said, role) for role in ("a", "b", "c")] == ["last", "other", ""]


def test_among_equally_good_attempts_the_best_is_the_first() -> None:
    solved = [attempt(reward=1.0, success=True) for _ in range(3)]
    assert best_attempt(solved) is solved[0]
    assert best_attempt([attempt(reward=2.0), *solved]) is solved[0]


def test_which_of_equally_frequent_answers_wins_hangs_on_no_order_of_attempts() -> None:
    attempts = [attempt(said=(text,)) for text in ("9", "5", "1", "5", "1", "9", "7")]

    def winners(some: list[int]) -> list[str]:
        ordered = [attempts[place] for place in some]
        return [majority_vote(ordered, "a", normalize_answer, seed).actions[0].text for seed in range(12)]

    forwards = winners([0, 1, 2, 3, 4, 5, 6])
    assert forwards == winners([6, 5, 4, 3, 2, 1, 0]) == winners([2, 6, 0, 1, 5, 4, 3])
    assert set(forwards) == {"1", "5", "9"}  # and never 7, which one attempt gives


def test_the_winning_attempt_is_the_first_that_gives_the_answer() -> None:
    attempts = [attempt(said=(text,)) for text in ("4", "The answer is 7", "7")]
    assert majority_vote(attempts, "a", normalize_answer, 0) is attempts[1]


def test_a_budget_pays_for_whole_rounds_of_attempts_at_all_tasks() -> None:
    costs = [[10.0, 20.0, 30.0], [20.0, 20.0, 20.0]]  # rounds cost 15, 20 and 25 on average: in all 15, 35 and 60
    paid = {budget: max_affordable(costs, budget) for budget in (14.9, 15.0, 34.9, 35.0, 59.9, 60.0, 1000.0)}
    assert paid == {14.9: 0, 15.0: 1, 34.9: 1, 35.0: 2, 59.9: 2, 60.0: 3, 1000.0: 3}
