"""Metrics of joint trajectories: by hand, and against slow references; what nobody declares is absent."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from marft.common.metrics import find_metric, require_metric
from marft.common.types import Action, Episode, Observation, StepInfo, Task, ToolCall, Transition
from marft.common.usage import Usage
from marft.evaluation.metric_tables import build_cohort_table, build_metric_rows, build_metric_table, cohort_fields
from marft.evaluation.ratios import TEAM, Ratio, attempt_metrics
from marft.evaluation.trajectory_metrics import (
    METRICS,
    aggregate_ratios,
    compute_ratios,
    content_words,
    find_loops,
    iter_handoffs,
    repeats_question,
    trajectory_metrics,
)
from tests.episodes import ROLES, episodes, make_action

PAID = (None, Usage(cost=0.25), Usage(cost=0.5))
NEEDS_NOTHING = {
    "reward", "handoff_loop_rate", "message_tokens", "cost_tokens", "cost_seconds", "cost_money",
    "critical_path_seconds",
}  # fmt: skip


def episode(
    actions: Sequence[Action] = (), declared: Sequence[StepInfo] = (StepInfo(),), success: bool | None = None,
    shown: str = "o",
) -> Episode:  # fmt: skip
    steps = tuple(Transition(Observation(shown), 0.0, declared=known) for known in declared)
    return Episode(Task("t", "o"), "s", 0, tuple(actions), "terminated", steps, success)


def of(name: str, *played: Episode, role: str = TEAM) -> float | None:
    roles = ("a", "b", "c")
    return trajectory_metrics(played, roles).get(f"agents/{role}/{name}" if role else name)


def talk(agents: str, step: int = 0, told: bool = True) -> list[Action]:
    """Actions of agents one after the other, each of which has seen all before it."""
    made: list[Action] = []
    for agent in agents:
        call = sum(action.agent == agent for action in made)
        sees = tuple(action.id for action in made) if told else ()
        made.append(make_action(agent, step=step, call=call, index=len(made), sees=sees))
    return made


def calling(agent: str, *names: str, failed: Sequence[str] = (), call: int = 0, step: int = 0) -> Action:
    calls = tuple(ToolCall(name, error=name in failed) for name in names)
    return replace(make_action(agent, call=call, index=call, step=step), calls=calls)


def test_what_nobody_declares_is_absent() -> None:
    assert {name for name in trajectory_metrics([episode(talk("ab"))], ()) if "/" not in name} == {
        *NEEDS_NOTHING, "re_ask_rate",
    }  # fmt: skip
    assert set(trajectory_metrics([episode()], ())) == NEEDS_NOTHING
    assert trajectory_metrics([], ("a",)) == {}


def test_every_measure_is_in_the_catalogue() -> None:
    for name in METRICS:
        assert require_metric(name).name == name
    everything = episode(
        [calling("a", "x"), replace(talk("ab")[1], index=1)],
        [StepInfo(0.5, ("x",), {"a": ("x",), "b": ()}, 1)], success=True,
    )  # fmt: skip
    names = set(compute_ratios(everything, ("a", "b")))
    assert names >= set(METRICS)
    assert {name for name in names if find_metric(name) is None} == set()
    assert all(ratio.denominator > 0 for ratio in compute_ratios(everything, ("a", "b")).values())


def test_the_table_has_a_column_an_evaluation_and_a_row_for_what_any_of_them_says() -> None:
    measured = {
        "t": {
            "accuracy": [1, 1],
            "cost_tokens": [30, 1],
            "tool_error_rate": [0, 4],
            "agents/a/tool_error_rate": [0, 2],
        },
        "u": {"cost_tokens": [10, 1], "handoff_loop_rate": [0, 1], "tool_error_rate": [1, 4]},
    }
    about = {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False}
    later = {**about, "checkpoint": "last", "shuffled_messages": True, "measured": {"t": {"cost_tokens": [7, 1]}}}
    console = Console(width=300, file=io.StringIO())
    console.print(build_metric_table([about, {**about, "measured": measured}, later]))
    rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [re.split(" {2,}", row.strip()) for row in rows] == [
        ["base", "base", "last"], ["greedy", "greedy", "greedy"], ["metric", "shuffled"],
        ["calls failed", "12%"], ["a", "0%"], ["tokens per episode", "20", "7"],
    ]  # fmt: skip


def test_the_table_has_the_metrics_that_this_version_knows_and_that_are_of_trajectories() -> None:
    strange = {"nobody/knows": [3, 1], "episodes": [4, 1], "agents/a/kl": [1, 1]}
    first = {"measured": {"t": {"tool_error_rate": [0, 4], "cost_money": [0, 1], "role_adherence": [1, 0], **strange}}}
    second = {"measured": {"t": {"tool_error_rate": [1, 4], "cost_money": [0.5, 1]}}}
    assert [(row.label, *row.cells) for row in build_metric_rows([first, second])] == [
        ("calls failed", "0%", "25%"), ("paid (currency)", "0.0000", "0.5000"),
    ]  # fmt: skip


def test_tables_begin_at_the_edge_and_fold_long_names_and_numbers_stand_below_each_other() -> None:
    about = {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False}
    measured = {"accuracy": [1, 1], "cost_tokens": [7, 1], f"agents/{'long' * 10}/cost_tokens": [70, 1]}
    whole = {**about, "measured": {"t": measured}, "fields": {"level" * 8: {"t": "easy"}}}
    console = Console(width=44, file=io.StringIO())
    console.print(build_metric_table([whole]), build_cohort_table([whole], "level" * 8))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "                                        base",
        "metric                                greedy",
        "tokens per episode                         7",
        "  longlonglonglonglonglonglonglonglo      70",
        "nglong                                      ",
        "                                        base",
        "by                                    greedy",
        "levellevellevellevellevellevellevel         ",
        "level                                       ",
        "levellevellevellevellevellevellevel  1 tasks",
        "level = easy                                ",
        "  accuracy                            100.0%",
        "  tokens per episode                       7",
        "    longlonglonglonglonglonglonglon       70",
        "glonglong                                   ",
    ]


def test_evaluations_can_be_told_apart_by_the_fields_of_any_of_them_in_one_order() -> None:
    fields = [{"level": {}, "kind": {}, "zone": {}, "area": {}, "hour": {}}, {}, {"topic": {}, "kind": {}}]
    together = [*({"fields": some} for some in fields), {"measured": {}}]
    assert cohort_fields(together) == ["area", "hour", "kind", "level", "topic", "zone"]


def test_a_metric_that_is_out_of_nothing_is_absent() -> None:
    assert aggregate_ratios([{"x": Ratio(0.0, 0.0), "y": Ratio(1.0, 2.0)}, {"x": Ratio(0.0, 0.0)}]) == {"y": 0.5}
    assert aggregate_ratios([]) == {}


def test_the_table_says_what_was_evaluated_where_there_are_several() -> None:
    about = {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False}
    console = Console(width=100, file=io.StringIO())
    console.print(build_metric_table([{**about, "target": "runs/a"}, {**about, "target": "runs/b"}], targets=True))
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == [["a", "b"], ["base", "base"], ["metric", "greedy", "greedy"]]


def test_by_cohort_the_table_is_of_the_tasks_of_each_value_and_an_unknown_field_is_refused() -> None:
    about = {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False}
    measured = {name: {"accuracy": [n % 2, 1], "agents/a/cost_tokens": [n, 1]} for n, name in enumerate("tuv")}
    whole = {**about, "measured": measured, "fields": {"level": {"t": "easy", "u": "hard", "v": "hard"}}}
    console = Console(width=300, file=io.StringIO())
    console.print(build_cohort_table([whole, about], "level"))
    rows = [re.split(" {2,}", row.strip()) for row in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert rows[:2] == [["base", "base"], ["by level", "greedy", "greedy"]]
    assert [row for row in rows if "tasks" in row[-1]] == [
        ["level = easy", "1 tasks", "0 tasks"], ["level = hard", "2 tasks", "0 tasks"],
    ]  # fmt: skip
    assert [row[1] for row in rows if row[0] == "accuracy"] == ["0.0%", "50.0%"]
    with pytest.raises(ValueError, match=r"no field 'levle' .* did you mean 'level'\?"):
        build_cohort_table([whole], "levle")


def test_completion_is_of_the_episodes_that_say_so() -> None:
    assert of("accuracy", episode(success=True), episode(success=False), episode(success=False), episode()) == 1 / 3


def test_the_reward_is_what_all_steps_paid() -> None:
    paid = tuple(Transition(Observation("o"), reward) for reward in (1.0, 0.5, -0.25))
    assert of("reward", replace(episode(), transitions=paid), episode()) == 1.25 / 2


def attempts(*solved: tuple[str, bool | None]) -> list[Episode]:
    return [
        replace(episode(success=success), task=Task(task, "o"), sample=n) for n, (task, success) in enumerate(solved)
    ]


def test_passes_are_of_tasks_with_enough_attempts_whose_success_is_known() -> None:
    five = [("x", True)] + [("x", False)] * 4
    played = attempts(*five, ("y", True), ("y", True), ("y", None), ("z", True))
    assert attempt_metrics(played) == {
        "pass@2": pytest.approx((0.4 + 1.0) / 2), "pass@4": pytest.approx(0.8), "avg@4": pytest.approx(0.2),
        "pass^2": pytest.approx((0.0 + 1.0) / 2), "pass^4": 0.0,
    }  # fmt: skip
    assert attempt_metrics(attempts(("x", True), ("y", None), ("y", None))) == {}
    assert {require_metric(name).name for name in attempt_metrics(played)} == {"pass@*", "pass^*", "avg@*"}
    assert set(attempt_metrics(attempts(*[("x", True)] * 9))) == {
        f"pass{sign}{k}" for sign in "@^" for k in (2, 4, 8)
    } | {"avg@8"}
    uneven = attempts(("x", True), ("x", False), ("y", True), ("y", False), ("y", False))
    assert attempt_metrics(uneven)["avg@2"] == pytest.approx((1 / 2 + 1 / 3) / 2), "a task counts once"


def test_progress_is_the_last_and_the_score_the_mean_of_all_steps() -> None:
    rises, falls = (episode(declared=[StepInfo(p) for p in shares]) for shares in ((0.25, 0.0, 0.5), (1.0, None, 0.5)))
    assert of("goal_progress", rises, falls, episode()) == (0.5 + 0.5) / 2
    assert of("trajectory_score", rises, falls, episode()) == (0.25 + 0.75) / 2
    assert of("goal_progress", episode(declared=[StepInfo(0.0)])) == 0.0


def test_efficiency_is_of_steps_needed_over_steps_taken_and_0_where_nothing_is_solved() -> None:
    def took(steps: int, success: bool | None) -> Episode:
        return episode(declared=[StepInfo(fewest_steps=2)] * steps, success=success)

    assert of("step_efficiency", took(2, True), took(8, True)) == (1.0 + 0.25) / 2
    assert of("step_efficiency", took(1, True)) == 1.0  # the declaration was too high
    assert of("step_efficiency", took(2, False)) == 0.0
    assert of("step_efficiency", took(2, None)) is None
    later = [StepInfo(fewest_steps=steps) for steps in (1, 3, None)] + [StepInfo()]
    assert of("step_efficiency", episode(declared=later, success=True)) == 3 / 4, "what was said last holds"


def test_tool_errors_are_a_share_of_calls_and_not_of_episodes() -> None:
    first = episode([calling("a", "x", "", "y", failed=["", "y"]), calling("b", "x")])
    second = episode([calling("a", *"x" * 6)])
    assert of("tool_error_rate", first, second) == 2 / 10
    assert of("tool_error_rate", first, second, role="a") == 2 / 9
    assert of("tool_error_rate", first, second, role="b") == 0.0
    assert of("tool_error_rate", first, second, role="c") is None


def test_selection_is_of_calls_that_name_a_tool_where_the_right_ones_are_known() -> None:
    known = StepInfo(right_tools=("x",))
    played = episode(
        [calling("a", "x", "", "y", failed=["x"]), calling("b", "x", step=1), calling("a", "y", step=2, call=1)],
        [known, StepInfo(), StepInfo(right_tools=())],
    )
    assert of("tool_selection_accuracy", played) == 1 / 3
    assert of("tool_selection_accuracy", played, role="b") is None
    assert of("tool_selection_accuracy", episode([calling("a")], [known])) is None


def test_an_action_of_a_step_that_never_ended_is_judged_by_nothing() -> None:
    played = episode([calling("a", "x", step=1)], [StepInfo(0.5, ("y",), {"a": ()})])
    assert of("tool_selection_accuracy", played) is None
    assert of("role_adherence", played) is None


def test_adherence_is_of_actions_of_roles_that_are_declared() -> None:
    known = StepInfo(allowed_tools={"a": ("x",), "b": ()})
    actions = [calling("a", "x", "x"), calling("a", "x", "y", call=1), calling("b"), calling("c", "y")]
    assert of("role_adherence", episode(actions, [known])) == 2 / 3
    assert of("role_adherence", episode(actions, [known]), role="a") == 0.5
    assert of("role_adherence", episode(actions, [known]), role="b") == 1.0
    assert of("role_adherence", episode(actions, [known]), role="c") is None
    assert of("role_adherence", episode([calling("a", "")], [known])) == 1.0  # which tool, nobody knows


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ("", ""), ("a", ""), ("ab", ""), ("abababa", "ab"), ("ababab", ""), ("cababababac", "ab"), ("acbabababc", "ab"),
        ("abacabacaba", ""), ("abababacacac", "ab"), ("abababacacaca", "abc"), ("abababababababcbcbcbcb", "abc"),
    ],
)  # fmt: skip
def test_a_loop_is_more_than_two_round_trips_of_one_pair(held: str, found: str) -> None:
    assert find_loops(held) == set(found) == looping_reference(held)


def looping_reference(held: str) -> set[str]:
    """Every stretch of seven that goes between two agents."""
    stretches = [held[start : start + 7] for start in range(len(held) - 6)]
    return {
        agent for some in stretches if all(some[place] == some[place % 2] for place in range(7)) for agent in some[:2]
    }


@given(st.text("abc", max_size=30))
def test_loops_are_what_the_reference_finds(names: str) -> None:
    held = "".join(name for name, _ in groupby(names))
    assert find_loops(held) == looping_reference(held)


def test_control_is_handed_over_only_to_whoever_has_seen_what_was_done_in_the_same_step() -> None:
    assert list(iter_handoffs(episode(talk("aabab")))) == [["a", "b", "a", "b"]]
    assert list(iter_handoffs(episode(talk("aba") + talk("ab", step=1) + talk("c", step=2)))) == [
        ["a", "b", "a"],
        ["a", "b"],
    ]
    loops_first = episode(talk("abababa") + talk("ab", step=1))
    assert of("handoff_loop_rate", loops_first) == 1.0, "a loop counts, whatever is passed on in the steps after it"
    loop = episode(talk("abababa"))
    assert of("handoff_loop_rate", loop, episode(talk("ababab"))) == 0.5
    assert of("handoff_loop_rate", loop, role="a") == of("handoff_loop_rate", loop, role="b") == 1.0
    assert of("handoff_loop_rate", loop, role="c") == 0.0
    assert of("handoff_loop_rate", episode(talk("abababa", told=False))) == 0.0
    steps = [action for step in range(7) for action in talk("ab", step=step)]
    assert of("handoff_loop_rate", episode(steps)) == 0.0
    seen = [timed(action, 0.0, 0.0, tuple(steps[:n])) for n, action in enumerate(steps)]
    assert of("handoff_loop_rate", episode(seen)) == 0.0, "what a step before it said is no handoff"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("Which port does the server use?", True), ("What is its port?", True), ("The server. Which port?", True),
        ("Which host does the server use?", False), ("The server uses its port.", False), ("What?", False),
        ("Why is that so?", False), ("Which port? And the colour of it?", True), ("PORT?!", True), ("", False),
        ("Is the port 8080, server\nor host?", False),
    ],
)  # fmt: skip
def test_asking_again_is_a_question_that_names_only_what_was_said(text: str, again: bool) -> None:
    assert repeats_question(text, ["The server listens: its port is 8080."]) is again


def test_what_two_messages_say_together_is_not_asked_again_and_a_quote_is_not_asked() -> None:
    assert not repeats_question("Which port has the server?", ["A server.", "A port."])
    assert not repeats_question("You ask: Which port?", ["The port is 1."], observation="You ask: Which port? Answer.")
    assert not repeats_question("Which port?", [])


@given(st.text(max_size=60), st.lists(st.text(max_size=60), max_size=3))
def test_asking_never_fails_and_needs_a_question_mark(text: str, told: list[str]) -> None:
    assert repeats_question(text, told) <= ("?" in text)
    assert content_words(text) == content_words(f"the {text} of?")


def test_only_receivers_can_ask_again() -> None:
    say, ask = talk("ab")
    said, asked = replace(say, text="The port is 8080."), replace(ask, text="Which port?")
    assert of("re_ask_rate", episode([said, asked])) == of("re_ask_rate", episode([said, asked]), role="b") == 1.0
    assert of("re_ask_rate", episode([said, asked]), role="a") is None
    assert of("re_ask_rate", episode([said, replace(asked, text="8080.")])) == 0.0
    assert of("re_ask_rate", episode([said, asked], shown="Which port?")) == 0.0
    third = replace(make_action("c", index=2, sees=(said.id,)), text="8080.")
    assert of("re_ask_rate", episode([said, asked, third])) == 0.5, "each that was told something counts once"
    to_itself = [replace(action, text="Which port?") for action in talk("bb")]
    assert of("re_ask_rate", episode(to_itself)) is None


def test_any_message_that_was_read_is_asked_for_again_but_no_thought_and_no_quote_of_the_step() -> None:
    first, second, ask = talk("abc")
    first, second = replace(first, text="The port is 8080."), replace(second, text="Thank you.")
    asked = replace(ask, text="Which port?")
    assert of("re_ask_rate", episode([first, second, asked]), role="c") == 1.0
    thinks = replace(ask, text="Which port? Ah. It is 8080?", thought=len("Which port?"))
    assert of("re_ask_rate", episode([first, second, thinks]), role="c") == 1.0
    thinks = replace(ask, text="Which port? Who cares about hosts?", thought=len("Which port?"))
    assert of("re_ask_rate", episode([first, second, thinks]), role="c") == 0.0
    hidden = replace(first, text="The port is 8080. I say nothing.", thought=len("The port is 8080."))
    assert of("re_ask_rate", episode([hidden, second, asked]), role="c") == 0.0

    later = [
        replace(action, text=text)
        for action, text in zip(talk("ab", step=1), ["A port.", "Hm. Which port?"], strict=True)
    ]
    steps = [Transition(Observation(shown), 0.0) for shown in ("Begin.", "Which port? Say it.")]
    assert of("re_ask_rate", replace(episode(later), transitions=tuple(steps))) == 0.0
    assert of("re_ask_rate", replace(episode(later), transitions=tuple(reversed(steps)))) == 1.0
    assert of("re_ask_rate", replace(episode(later), transitions=tuple(steps[1:]))) == 1.0, "its step never ended"


def test_messages_cost_whoever_wrote_them_and_tokens_whoever_read_and_wrote() -> None:
    a, b, c = talk("abc")
    played = episode([a, replace(b, message_tokens=(3,)), replace(c, message_tokens=(4, 5))])
    assert of("message_tokens", played, episode()) == 6.0
    assert [of("message_tokens", played, role=role) for role in "abc"] == [7.0, 5.0, 0.0]
    assert of("cost_tokens", played) == 3 * (3 + 2)
    assert of("cost_tokens", played, episode(), role="a") == (3 + 2) / 2


def test_money_is_what_endpoints_were_paid_by_the_prices_and_is_told_where_it_is_not_nothing() -> None:
    a, b, c = (replace(action, usage=usage) for action, usage in zip(talk("abc"), PAID, strict=True))
    assert of("cost_money", episode([a, b, c]), episode([a])) == 0.75 / 2
    assert [of("cost_money", episode([a, b, c]), role=role) for role in "abc"] == [0.0, 0.25, 0.5]
    saved = {"t": compute_ratios(episode([a, b, c]), "abc")}
    told = [row for row in build_metric_rows([{"measured": saved}]) if row.label.startswith("paid")]
    assert [(row.agent, *row.cells) for row in told] == [("", "0.7500"), ("b", "0.2500"), ("c", "0.5000")]
    free = {"t": compute_ratios(episode([a]), "abc")}
    assert not any(row.label.startswith("paid") for row in build_metric_rows([{"measured": free}]))


def timed(action: Action, started: float, ended: float, sees: tuple[Action, ...] = ()) -> Action:
    ids = tuple(other.id for other in sees)
    return replace(action, started=started, ended=ended, sees=ids, message_tokens=(0,) * len(ids))


def test_the_critical_path_leaves_out_what_could_have_waited_for_nobody() -> None:
    a, b, c = talk("abc")
    plan = timed(a, 0.0, 1.0)
    draft = timed(b, 1.0, 4.0, (plan,))
    beside = timed(c, 1.0, 2.0, (plan,))
    judged = timed(make_action("a", call=1, index=3), 5.0, 6.0, (draft, beside))
    alone = timed(make_action("c", step=1, index=4), 7.0, 9.0, (judged,))
    played = episode([plan, draft, beside, judged, alone])
    assert of("critical_path_seconds", played) == (1 + 3 + 1) + 2
    assert of("cost_seconds", played) == 1 + 3 + 1 + 1 + 2
    assert of("cost_seconds", played, role="c") == 3.0
    recalled = replace(timed(make_action("c", call=1, index=3), 5.0, 6.0), continues=(beside.id,))
    assert of("critical_path_seconds", episode([plan, draft, beside, recalled])) == 1 + 3
    assert of("critical_path_seconds", episode([plan, beside, recalled])) == 1 + 1 + 1


@given(episodes(), st.randoms(use_true_random=False))
def test_metrics_of_random_episodes_hold_what_they_promise(played: Episode, random: object) -> None:
    draw = np.random.default_rng(random.randrange(2**31))  # type: ignore[attr-defined]
    actions = tuple(
        replace(a, started=float(s), ended=float(s + d), message_tokens=tuple(draw.integers(0, 9, len(a.sees)).tolist()))
        for a, s, d in zip(played.actions, draw.uniform(0, 9, len(played.actions)), draw.uniform(0, 9, len(played.actions)), strict=True)
    )  # fmt: skip
    played = replace(played, actions=actions)
    metrics = trajectory_metrics([played], ROLES)
    for name in ("message_tokens", "cost_tokens", "cost_seconds"):
        assert metrics[name] == pytest.approx(math.fsum(metrics[f"agents/{role}/{name}"] for role in ROLES))
    assert metrics["critical_path_seconds"] <= metrics["cost_seconds"] + 1e-9
    assert metrics["critical_path_seconds"] == pytest.approx(longest_reference(played))
    assert all(0 <= value <= 1 for name, value in metrics.items() if name.endswith(("_rate", "adherence", "accuracy")))


def longest_reference(played: Episode) -> float:
    """Every chain of every step, walked to its beginning."""
    by_id = {action.id: action for action in played.actions}

    def chain(action: Action) -> float:
        before = [by_id[seen] for seen in action.sees if by_id[seen].step == action.step]
        return action.ended - action.started + max(map(chain, before), default=0.0)

    steps = {action.step for action in played.actions}
    return sum(max(chain(action) for action in played.actions if action.step == step) for step in steps)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8), st.integers(0, 8))
def test_ratios_add_up_however_a_batch_is_split(pairs: list[tuple[int, int]], cut: int) -> None:
    parts = [Ratio(float(amount), float(out_of)) for amount, out_of in pairs]
    whole = Ratio.total(parts)
    assert Ratio.total([Ratio.total(parts[:cut]), Ratio.total(parts[cut:])]) == whole
    assert whole.value == (sum(a for a, _ in pairs) / n if (n := sum(n for _, n in pairs)) else None)
