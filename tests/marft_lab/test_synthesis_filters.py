"""Filters of cold starts, each against a plain loop over what it says: what is refused, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Episode, Observation, Task, ToolCall, Transition
from marft.evaluation.trajectory_metrics import find_loops
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext
from marft_lab.synthesis.filtering import FilterCounts, apply_filters, reject_over_cap, reject_unbalanced
from marft_lab.synthesis.filters.duplicates import Duplicates
from marft_lab.synthesis.filters.handoffs import InefficientHandoffs, handoff_efficiencies
from marft_lab.synthesis.filters.leakage import HELD_OUT_REASON, Leakage, find_near_duplicates
from marft_lab.synthesis.filters.success import Success
from tests.episodes import make_action
from tests.marft.evaluation.test_trajectories import talk

NO_WORLD = FilterContext()


def candidate(
    words: str | Sequence[str] = "", *, task: str = "t", prompt: str = "o", data: dict[str, Any] | None = None,
    agents: str = "a", success: bool | None = True, reward: float = 1.0, status: Any = "terminated",
    read: dict[str, str] | None = None,
) -> Candidate:  # fmt: skip
    """An episode in which agents speak one after the other, each having seen all before it."""
    said = [words] * len(agents) if isinstance(words, str) else words
    actions = [replace(action, text=text) for action, text in zip(talk(agents), said, strict=True)]
    steps = (Transition(Observation(prompt), reward),)
    episode = Episode(Task(task, prompt, data or {}), "traces", 0, tuple(actions), status, steps, success)
    return Candidate(episode, read or {})


def refused(part: Filter, *candidates: Candidate, world: FilterContext = NO_WORLD) -> dict[int, str]:
    return dict(part.reject(candidates, world))  # type: ignore[attr-defined]


def test_what_failed_is_left_out_and_what_nobody_graded_needs_a_least_reward() -> None:
    solved, unsolved = candidate(), candidate(success=False, reward=0.0)
    lost, unknown = candidate(status="failed", success=None), candidate(success=None, reward=0.5)
    everything = (solved, unsolved, lost, unknown)
    assert list(refused(Success(), *everything)) == [1, 2, 3]
    assert list(refused(Success(min_reward=0.5), *everything)) == [1, 2]
    assert list(refused(Success(min_reward=0.75), *everything)) == [1, 2, 3]
    assert list(refused(Success(require_success=False), *everything)) == [2], (
        "what could not be scored is never imitated"
    )


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 6)), max_size=12))
def test_efficiency_of_handoffs_is_the_fewest_of_the_task_against_its_own(pairs: list[tuple[str, int]]) -> None:
    tasks, counts = [task for task, _ in pairs], [count for _, count in pairs]
    slow = [(1 + min(c for other, c in pairs if other == task)) / (1 + count) for task, count in pairs]
    assert handoff_efficiencies(tasks, counts) == pytest.approx(slow)
    assert all(0 < share <= 1 for share in slow)


def test_detours_and_loops_are_left_out_and_only_within_their_task() -> None:
    direct, detour = candidate(agents="ab"), candidate(agents="acbdc")  # 1 handoff, 4
    other = candidate(agents="acbdc", task="another")
    assert list(refused(InefficientHandoffs(), direct, detour, other)) == [1]  # (1 + 1) / (1 + 4) = 0.4
    assert list(refused(InefficientHandoffs(min_efficiency=0.4), direct, detour, other)) == []
    loop = candidate(agents="abababa", task="loop")
    assert find_loops("abababa")
    assert refused(InefficientHandoffs(), loop) == {0: "two agents passed it back and forth"}
    assert refused(InefficientHandoffs(allow_loops=True), loop) == {}
    assert list(refused(InefficientHandoffs(), loop, candidate(agents="acb" * 5, task="loop"))) == [0], (
        "what is left out is no measure for what stays"
    )


def test_what_says_the_same_again_is_left_out_whatever_its_tasks_id() -> None:
    first, again = candidate("So it is  5.", task="t/1"), candidate("so it IS 5.", task="t/2")
    assert list(refused(Duplicates(), first, again)) == [1]
    assert refused(Duplicates(), first, candidate("So it is 5.", prompt="another question")) == {}
    assert refused(Duplicates(), first, candidate("So it is 5.", data={"answer": "6"})) == {}
    assert refused(Duplicates(), candidate("no", agents="ab"), candidate("no", agents="ba")) == {}, "others say it"
    called = candidate("So it is 5.")
    action = replace(called.episode.actions[0], calls=(ToolCall("add", "{}"),))
    assert refused(Duplicates(), first, replace(called, episode=replace(called.episode, actions=(action,)))) == {}
    between = replace(called.episode.actions[0], intermediate_texts=("I add first.",))
    assert refused(Duplicates(), first, replace(called, episode=replace(called.episode, actions=(between,)))) == {}


def test_what_says_nearly_the_same_is_left_out_from_a_likeness_on() -> None:
    one, other = candidate("one two three four five"), candidate("one two three four six")  # 3 of 5 shingles
    assert refused(Duplicates(), one, other) == {}
    assert list(refused(Duplicates(min_similarity=0.6), one, other)) == [1]
    assert refused(Duplicates(min_similarity=0.61), one, other) == {}


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from(["1", "2"])), max_size=10))
def test_of_those_that_say_the_same_exactly_the_first_stays(pairs: list[tuple[str, str]]) -> None:
    found = refused(Duplicates(), *(candidate(text, prompt=prompt) for prompt, text in pairs))
    assert [n for n in range(len(pairs)) if n not in found] == [pairs.index(pair) for pair in dict.fromkeys(pairs)]


TEST = Task("held/1", "Sam has nineteen red apples and gives seven of them to Ada. How many?", {"answer": "12"})


@pytest.mark.parametrize(
    ("task", "near"),
    [
        (replace(TEST, id="train/1"), True),  # the same under another id
        (Task("held/1", "Another question altogether, of four ships.", {}), True),  # the id is held out
        (Task("train/2", TEST.prompt.replace("Ada", "Bob") + " ", {"answer": "12"}), False),
        (Task("train/3", TEST.prompt.upper().replace("?", " ?"), TEST.data), True),
        (Task("train/4", "Where do the four ships go to in winter?", {}), False),
    ],
)
def test_a_task_that_is_held_out_is_known_whatever_it_is_called(task: Task, near: bool) -> None:
    assert bool(find_near_duplicates([task], [TEST], 0.8)) is near
    if task.id == "train/2":
        assert find_near_duplicates([task], [TEST], 0.6)
        assert not find_near_duplicates([task], [TEST], 0.0), "0 looks at what is the same alone"
    if task.id == "train/1":
        assert find_near_duplicates([task], [TEST], 0.0)
        twice = [TEST, replace(TEST, id="held/2", data={"answer": "13"})]  # then the data say which task it is
        assert find_near_duplicates([task], twice, 0.8)
        assert not find_near_duplicates([replace(task, data={"answer": "14"})], twice, 0.8)


def test_a_prompt_that_comes_twice_hides_no_other_task() -> None:
    """What is nearly a held-out task was let through as soon as any two held-out tasks had one prompt."""
    near = Task("train/2", TEST.prompt.replace("Ada", "Bob"), {"answer": "12"})
    others = [Task(f"held/{n}", "Which ship goes where in winter, of all four?", {"answer": str(n)}) for n in (2, 3)]
    assert find_near_duplicates([near], [TEST, *others], 0.6) == {"train/2"}


def test_of_a_task_the_best_attempts_stay() -> None:
    tasks, worth = ["a", "a", "b", "a"], [(0.5, -2.0), (1.0, -3.0), (0.0, -1.0), (1.0, -2.0)]
    assert list(reject_over_cap(tasks, 1, worth)) == [0, 1]
    assert list(reject_over_cap(tasks, 2, worth)) == [0]
    assert list(reject_over_cap(tasks, 2)) == [3], "of equally good ones the first"


def test_episodes_of_held_out_tasks_are_left_out() -> None:
    theirs = candidate(task="train/1", prompt=TEST.prompt, data=dict(TEST.data))
    assert refused(Leakage(), theirs, candidate(prompt="p"), world=FilterContext(held_out=[TEST])) == {
        0: HELD_OUT_REASON
    }


def leaky(read: str, *, observed: str = "2 + 3 + 51 =", agents: str = "ab", words: Sequence[str] = ("I", "56")) -> Any:
    told = {f"0/{agent}/0": "You are asked: 2 + 3 + 51 =" for agent in agents}
    return candidate(
        words, agents=agents, prompt=observed, data={"entry": {"answer": "56"}},
        read={**told, f"0/{agents[-1]}/0": read},
    )  # fmt: skip


def test_an_answer_that_nobody_had_told_is_a_leak_and_one_that_was_worked_out_is_none() -> None:
    secret = leaky("You are asked: 2 + 3 + 51 =. Psst, it is 56.")
    assert refused(Leakage(), secret) == {0: "b read an answer that nobody had told it"}
    assert refused(Leakage(), leaky("You are asked: 2 + 3 + 51 =")) == {}
    assert refused(Leakage(), leaky("A message from a: 56", words=("It is 56.", "56"))) == {}, "a teammate said it"
    assert refused(Leakage(), leaky("shown: 56", observed="The wall says 56.")) == {}, "the environment showed it"
    assert refused(Leakage(), leaky("as ever, 56"), world=FilterContext(role_prompts={"b": "as ever, 56"})) == {}, (
        "it is always told"
    )
    assert refused(Leakage(), leaky("as ever, 56"), world=FilterContext(role_prompts={"a": "as ever, 56"})) == {
        0: "b read an answer that nobody had told it"
    }, "what one role is told, another one is not"
    assert refused(Leakage(answer_fields=("truth",)), secret) == {}
    assert refused(Leakage(min_chars=3), secret) == {}


def test_what_an_agent_said_and_heard_of_tools_itself_up_to_then_accounts_for_an_answer() -> None:
    first = replace(make_action("b", text="I look."), calls=(ToolCall("look", "{}", output="It is 56."),))
    second = replace(make_action("b", call=1, index=1, text="56"), continues=(first.id,))
    found = leaky("", observed="o")
    for actions, leaks in (
        ((first, second), False),
        ((first, replace(second, continues=(), sees=(first.id,), message_tokens=(1,))), False),
        ((first, replace(second, continues=())), True),
        ((replace(first, calls=()), second), True),
    ):
        told = replace(found, episode=replace(found.episode, actions=actions), prompts={second.id: "so far: 56"})
        assert refused(Leakage(), told) == ({0: "b read an answer that nobody had told it"} if leaks else {})


def test_what_was_said_to_others_is_no_excuse() -> None:
    found = leaky("b reads 56", words=("It is 56.", "56"))
    blind = replace(found.episode, actions=tuple(replace(a, sees=(), message_tokens=()) for a in found.episode.actions))
    assert refused(Leakage(), replace(found, episode=blind)) == {0: "b read an answer that nobody had told it"}


def test_what_an_agent_is_shown_alone_is_a_leak_to_the_others() -> None:
    found = leaky("it is 56", observed="o")
    shown = Observation("o", {"a": "o, and the code is 56", "b": "o"})
    hidden = replace(found.episode, transitions=(Transition(shown, 1.0),))
    assert refused(Leakage(), replace(found, episode=hidden)) == {0: "b read an answer that nobody had told it"}
    told = replace(found.episode, transitions=(Transition(Observation("o", {"b": "the code is 56"}), 1.0),))
    assert refused(Leakage(), replace(found, episode=told)) == {}


def test_what_comes_later_is_no_excuse() -> None:
    found = leaky("it is 56", observed="o")
    later = (Transition(Observation("o"), 0.0), Transition(Observation("56 it was"), 1.0))
    assert len(refused(Leakage(), replace(found, episode=replace(found.episode, transitions=later)))) == 1


def test_a_silent_role_may_not_say_the_answer() -> None:
    plain = leaky("A message from a: 56", words=("It is 56.", "56"))
    assert refused(Leakage(silent_roles=("a",)), plain) == {0: "a said an answer that it may not"}
    assert refused(Leakage(silent_roles=("b",)), plain) == {}, "it was told"


def test_the_funnel_counts_what_each_part_leaves_out_and_keeps_the_order() -> None:
    some = [candidate(str(n), success=n % 2 == 0) for n in range(6)] + [candidate("0")]
    left, passages = apply_filters(some, [Success(), Duplicates()], NO_WORLD)  # type: ignore[list-item]
    assert [one.episode.actions[0].text for one in left] == ["0", "2", "4"]
    assert passages == [
        FilterCounts("Success", 7, {"not solved": 3}), FilterCounts("Duplicates", 4, {"says what another one says": 1})
    ]  # fmt: skip
    assert [one.kept_count for one in passages] == [4, 3]


@given(st.lists(st.sampled_from("xyz"), max_size=15), st.integers(0, 4))
def test_no_task_has_more_than_its_cap_and_none_is_lost_below_it(tasks: list[str], cap: int) -> None:
    left = [task for place, task in enumerate(tasks) if place not in reject_over_cap(tasks, cap)]
    for task in "xyz":
        assert left.count(task) == (min(cap, tasks.count(task)) if cap else tasks.count(task))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20))
def test_a_balance_keeps_as_many_of_each_kind_as_of_the_rarest_and_as_many_tasks_as_it_can(
    pairs: list[tuple[int, int]],
) -> None:
    tasks = [Task(f"{level}/{number}", "?", {"level": level}) for level, number in pairs]
    left = [task for place, task in enumerate(tasks) if place not in reject_unbalanced(tasks, "level")]
    levels = [task.data["level"] for task in tasks]
    fewest = min((levels.count(level) for level in set(levels)), default=0)
    for level in set(levels):
        mine = [task.id for task in left if task.data["level"] == level]
        assert len(mine) == fewest
        assert len(set(mine)) == min(fewest, len({task.id for task in tasks if task.data["level"] == level}))


def test_actions_are_looked_at_by_the_words_of_the_agent_itself() -> None:
    begun = replace(make_action("a", text="Begun by b: 5"), response_prefix=12)
    one = candidate("5")
    assert refused(Duplicates(), one, replace(one, episode=replace(one.episode, actions=(begun,)))) == {
        1: "says what another one says"
    }


def test_what_a_teammate_heard_and_did_not_pass_on_is_no_excuse() -> None:
    found = leaky("b reads 56")
    c = make_action("c", index=0, text="It is 56.")
    a = replace(make_action("a", index=1, text="Wait."), sees=(c.id,), message_tokens=(1,))
    b = replace(make_action("b", index=2, text="56"), sees=(a.id,), message_tokens=(1,))
    told = replace(found, episode=replace(found.episode, actions=(c, a, b)), prompts={b.id: "psst: 56"})
    assert refused(Leakage(), told) == {0: "b read an answer that nobody had told it"}
