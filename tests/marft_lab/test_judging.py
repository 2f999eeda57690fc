"""Successive halving and the paired test, held to a slow tournament and to the formulas."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from marft.common.prompt_history import PromptScore
from marft.common.types import Task
from marft.evaluation.intervals import paired_difference, wilson_interval
from marft_lab.prompt_optimization.search import halving_rounds, measure_gain, select_best, success_rate

OUTCOMES = st.dictionaries(st.sampled_from("abcdefgh"), st.booleans())


@given(candidates=st.integers(1, 40), tasks=st.integers(1, 200))
def test_halving_ends_with_one_candidate_and_all_tasks(candidates: int, tasks: int) -> None:
    sizes, left = halving_rounds(candidates, tasks), candidates
    for _ in sizes:
        left = (left + 1) // 2
    assert left == 1
    assert sizes == sorted(sizes)
    assert sizes[-1:] == ([tasks] if candidates > 1 else [])
    assert sizes == [max(1, tasks // 2**halvings) for halvings in range(len(sizes) - 1, -1, -1)]


@given(st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=1, max_size=9))
def test_it_is_that_of_a_slow_tournament(outcomes: list[list[bool]]) -> None:
    tasks, played = [Task(str(n), "") for n in range(8)], [0] * len(outcomes)

    def play(candidate: int, some: Sequence[Task]) -> dict[str, bool]:
        played[candidate] += len(some)
        return {task.id: outcomes[candidate][int(task.id)] for task in some}

    best, found = select_best(range(len(outcomes)), tasks, play)
    left, seen = list(range(len(outcomes))), [0] * len(outcomes)
    for size in halving_rounds(len(outcomes), 8):
        for candidate in left:
            seen[candidate] = size
        order = sorted(left, key=lambda c: (-sum(outcomes[c][:size]), c))
        left = [c for c in left if c in order[: (len(left) + 1) // 2]]
    assert left == [best]
    assert [*map(len, found)] == seen == played, "nobody plays a task twice, or after it is out"
    assert all(
        success_rate(dict(enumerate(row[: len(of)]))) == success_rate(of)
        for row, of in zip(outcomes, found, strict=True)
    )


def test_a_share_is_of_what_is_known_and_0_where_nothing_is() -> None:
    assert (success_rate({"a": True, "b": False, "c": True, "d": True}), success_rate({})) == (0.75, 0.0)


@given(OUTCOMES, OUTCOMES)
def test_worth_is_of_the_tasks_of_which_both_are_known(before: dict[str, bool], after: dict[str, bool]) -> None:
    pairs = [(before[task], after[task]) for task in "abcdefgh" if task in before and task in after]
    if not pairs:
        assert measure_gain(before, after) is None
        return
    n, solved = len(pairs), sum(now for _, now in pairs)
    gain, interval = paired_difference([was for was, _ in pairs], [now for _, now in pairs])
    assert measure_gain(before, after) == PromptScore(n, solved / n, *wilson_interval(solved, n), gain, *interval)
    assert gain == (solved - sum(was for was, _ in pairs)) / n
