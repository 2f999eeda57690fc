"""Gates and cohorts: what fails, in words, and over which tasks."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from marft.cli.main import app
from marft.common.errors import UserError
from marft.common.types import Task
from marft.evaluation.cohorts import collect_fields, group_tasks_by_field
from marft.evaluation.comparison import compare_evaluations
from marft.evaluation.gates import Gate, check_gates
from marft.evaluation.metric_changes import Comparison, OutcomeChanges, compare_metrics
from marft.runs.run_folder import RunFolder
from tests.helpers import settings, write_evaluation


def evaluation(**metrics: list[tuple[float, float]]) -> dict[str, Any]:
    """One that was saved: tasks 0, 1, 2, … of which each metric has an amount out of something."""
    tasks = range(max(map(len, metrics.values()), default=0))
    named = {name.replace("__", "/"): pairs for name, pairs in metrics.items()}
    return {"measured": {str(n): {name: [*pairs[n]] for name, pairs in named.items() if n < len(pairs)} for n in tasks}}


def test_gates_fail_where_more_than_a_tenth_of_the_tasks_could_not_be_scored_any_more() -> None:
    before = {**BEFORE, "rewards": {str(n): 1.0 for n in range(100)}}
    for scored, failed in ((90, False), (89, True)):
        after = {**BEFORE, "rewards": {str(n): 1.0 for n in range(scored)}}
        (verdict,) = check_gates(["accuracy < -5%"], before, after)
        assert verdict.failed is failed
    assert "11 of 100 tasks that were scored before could not be scored after" in verdict.reason


@pytest.mark.parametrize("lost", [0, 2])
def test_a_gate_of_a_role_with_a_dot_is_read_where_one_run_alone_has_it(lost: int) -> None:
    def side(role: str, scored: int) -> dict[str, Any]:
        about = evaluation(**{f"agents__{role}__tool_error_rate": [(0.0, 1.0)] * 3})
        return {**about, "rewards": {str(n): 1.0 for n in range(scored)}}

    verdicts = check_gates(
        [" agents.a.b.tool_error_rate > 1% ", "agents.c.d.tool_error_rate > 1%"],
        side("a.b", 10),
        side("c.d", 10 - lost),
    )
    assert [verdict.gate.metric for verdict in verdicts] == ["agents/a.b/tool_error_rate", "agents/c.d/tool_error_rate"]
    assert [verdict.failed for verdict in verdicts] == [True, True]
    assert verdicts[0].gate.text == "agents.a.b.tool_error_rate > 1%"
    reason = "tasks that were scored before" if lost else "was not measured on the same tasks"
    assert all(reason in verdict.reason for verdict in verdicts)


SOLVED, MISSED = (1.0, 1.0), (0.0, 1.0)
BEFORE = evaluation(accuracy=[SOLVED] * 90 + [MISSED] * 10, cost_tokens=[(100.0, 1.0)] * 100)
AFTER = evaluation(accuracy=[SOLVED] * 88 + [MISSED] * 12, cost_tokens=[(110.0, 1.0)] * 100)


@pytest.mark.parametrize(
    ("gate", "failed"),
    [
        ("accuracy < -1%", True), ("accuracy < -2.5%", False), ("accuracy<-0.01", True), ("accuracy > +1%", False),
        ("cost_tokens > +5%", True), ("cost_tokens > 15%", False), ("cost_tokens > 9", True), ("cost_tokens > 11", False),
        ("tool_error_rate > 0", True), ("agents.coder.tool_error_rate > +2%", True),
    ],
)  # fmt: skip
def test_a_gate_fails_where_the_change_is_beyond_it_or_unknown(gate: str, failed: bool) -> None:
    assert [verdict.failed for verdict in check_gates([gate], BEFORE, AFTER)] == [failed]


def test_what_stays_as_it_is_holds_where_no_change_for_the_worse_is_let_pass() -> None:
    gates = ["accuracy < 0", "cost_tokens > 0", "accuracy after < 90%"]
    assert [verdict.failed for verdict in check_gates(gates, BEFORE, BEFORE)] == [False] * 3


def test_the_reason_says_what_changed_by_how_much_and_how_sure_it_is() -> None:
    (verdict,) = check_gates(["accuracy < -1%"], BEFORE, AFTER)
    assert verdict.reason.startswith("accuracy went from 90.0% to 88.0% on 100 tasks (-2.0 points, 95 % -")
    (missing,) = check_gates(["re_ask_rate > 0"], BEFORE, AFTER)
    assert missing.reason == "re_ask_rate was not measured on the same tasks before and after"
    (cost,) = check_gates(["cost_tokens > +5%"], BEFORE, AFTER)
    assert cost.reason == "cost_tokens went from 100 to 110 on 100 tasks (+10)"


def test_a_gate_is_of_the_tasks_that_both_have_and_of_roles_with_dots() -> None:
    one, two = {"a.b": (1.0, 4.0)}, {"a.b": (3.0, 4.0)}
    before, after = (
        {"measured": {"t": {f"agents/{r}/tool_error_rate": p for r, p in of.items()}}} for of in (one, two)
    )
    (verdict,) = check_gates(["agents.a.b.tool_error_rate > +2%"], before, after)
    assert verdict.failed
    assert "from 25.0% to 75.0% on 1 tasks (+50.0 points)" in verdict.reason


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy < ", "accuracy <= 1", "accuracy < one", "nonsense < 1", "< 1", "accuracy[ =3] < 1"],
)  # fmt: skip
def test_what_is_no_gate_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="gate"):
        Gate.parse(text)


def test_cohorts_are_of_fields_that_tasks_share() -> None:
    data = [{"level": 1, "kind": "a", "id": "x" * 200}, {"level": 2, "kind": "a"}, {"level": 1}, {"level": 2, 3: "odd"}]
    fields = collect_fields([Task(str(n), "?", given) for n, given in enumerate(data)])
    assert group_tasks_by_field(fields, "level") == {"1": {"0", "2"}, "2": {"1", "3"}}
    assert group_tasks_by_field(fields, "kind") == {"a": {"0", "1"}}
    with pytest.raises(ValueError, match=r"no field 'id'.*they share: kind, level"):
        group_tasks_by_field(fields, "id")


def test_a_cohort_goes_by_values_of_100_characters_at_most_in_their_order_and_data_may_be_anything() -> None:
    data: list[Any] = [{"kind": name, "long": name * 101} for name in ("b", "b", "a", "a")]
    fields = collect_fields(
        [*(Task(str(n), "?", given) for n, given in enumerate(data)), Task("words", "?", "no table")]
    )  # type: ignore[arg-type]
    assert set(fields) == {"kind"}
    assert list(group_tasks_by_field(fields, "kind").items()) == [("a", {"2", "3"}), ("b", {"0", "1"})]
    assert set(collect_fields([Task(str(n), "?", {"long": "x" * 100}) for n in range(2)])) == {"long"}


def test_digests_and_numbers_with_a_point_make_no_cohorts_and_what_follows_them_does() -> None:
    data: Any = {"content_digest": "d", "share": 0.5, "level": 1, 3: "odd", "kind": "a", "hard": True}
    fields = collect_fields([Task(name, "?", data) for name in "ab"])
    assert list(fields) == ["level", "kind", "hard"]
    assert fields["hard"] == {"a": "True", "b": "True"}


@pytest.mark.parametrize(
    ("values", "known"), [("aabbcc", True), ("aabbc", False), ("ab", False), ("aa", True), ("a", False)]
)
def test_a_field_makes_cohorts_where_they_are_of_two_tasks_on_average(values: str, known: bool) -> None:
    tasks = [Task(str(n), "?", {"kind": value}) for n, value in enumerate(values)]
    assert ("kind" in collect_fields(tasks)) is known


def test_a_field_that_no_task_has_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match=r"fields that they share: none$"):
        group_tasks_by_field({}, "level")
    with pytest.raises(ValueError, match=r"no field 'levle' .* share: kind, level; did you mean 'level'\?$"):
        group_tasks_by_field({"level": {"a": "1"}, "kind": {"a": "x"}}, "levle")


def saved(*evaluations: tuple[str, str, bool, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"checkpoint": checkpoint, "mode": mode, "shuffled_messages": shuffled, **measured}
        for checkpoint, mode, shuffled, measured in evaluations
    ]


def test_runs_are_held_together_by_the_last_checkpoint_of_each_mode_that_both_were_evaluated_in() -> None:
    other = evaluation(accuracy=[MISSED] * 100)
    one = saved(
        ("step_000009", "greedy", False, other), ("step_000050", "greedy", False, BEFORE),
        ("step_000010", "greedy", False, other), ("base", "greedy", False, other),
        ("step_000060", "greedy", True, other), ("step_000070", "greedy", False, {"measured": {}}),
        ("step_000080", "greedy", False, {}), ("last", "sampled", False, other),
    )  # fmt: skip
    two = saved(("base", "greedy", False, AFTER))
    found = compare_evaluations(one, two, ("one", "two"))
    assert list(found.changes) == ["greedy"]
    accuracy = next(change for change in found.changes["greedy"] if change.metric == "accuracy")
    assert (accuracy.difference.before, accuracy.difference.after) == (0.9, 0.88)
    with pytest.raises(ValueError, match="were not evaluated in the same mode, or no task of theirs could be scored"):
        compare_evaluations(two, saved(("last", "sampled", False, AFTER)), ("two", "one"))


def test_a_base_does_not_speak_for_a_checkpoint_of_which_nothing_was_measured() -> None:
    both = [("base", mode, False, AFTER) for mode in ("greedy", "sampled")]
    unmeasured = saved(
        *both, ("step_000002", "greedy", False, {"measured": {}}), ("step_000002", "sampled", False, AFTER)
    )
    found = compare_evaluations(unmeasured, saved(*both), ("one", "two"), ["accuracy < -1%"])
    assert [(label, verdict.failed) for label, (verdict,) in found.verdicts.items()] == [
        ("greedy", True), ("sampled", False)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no task of theirs could be scored"):
        compare_evaluations(unmeasured[:3:2], saved(*both), ("one", "two"))


def test_steps_of_seven_digits_are_later_than_those_of_six() -> None:
    other = evaluation(accuracy=[MISSED] * 100)
    one = saved(("step_999999", "greedy", False, other), ("step_1000000", "greedy", False, BEFORE))
    (change, *_) = compare_evaluations(one, saved(("base", "greedy", False, AFTER)), ("one", "two")).changes["greedy"]
    assert change.difference.before == 0.9


def test_a_page_has_each_modes_own_verdicts_changes_cohorts_and_intervals() -> None:
    gate, kinds = "accuracy < -1%", {"kind": {str(n): "a|b" if n % 2 else "c" for n in range(100)}}
    only = {"measured": {t: {**of, "reward": [1.0, 1.0]} for t, of in BEFORE["measured"].items()}}
    found = {
        "greedy": compare_metrics(only, {**AFTER, "fields": kinds}, "kind"),
        "sampled": compare_metrics(BEFORE, BEFORE),
    }
    assert {change.metric for change in found["greedy"]} == {"accuracy", "cost_tokens"}
    verdicts = {"greedy": check_gates([gate], BEFORE, AFTER), "sampled": check_gates([gate], BEFORE, BEFORE)}
    page = Comparison(verdicts, found, dict.fromkeys(found, OutcomeChanges([], []))).as_markdown()
    greedy, sampled = page.split("## sampled")
    assert ("**failed**" in greedy, "**failed**" in sampled, "passed: `accuracy" in sampled) == (True, False, True)
    (whole,) = [line for line in greedy.splitlines() if line.startswith("| 100 | accuracy")]
    assert re.fullmatch(
        r"\| 100 \| accuracy \| 90.0% \| 88.0% \| -2.0 points \| -\d\.\d to [+-]\d\.\d points \|", whole
    ), whole
    assert "| 50, kind = a\\|b | accuracy |" in greedy
    assert "| 50, kind = c | accuracy |" in greedy


def runs(tmp_path: Path) -> list[str]:
    """Two that were evaluated, the second a little worse; tasks have levels."""
    fields = {"level": {str(n): str(n % 2) for n in range(100)}}
    for name, result in (("before", BEFORE), ("after", AFTER)):
        folder = RunFolder.create(settings("tiny", tmp_path, name=name))
        about = {"checkpoint": "step_000001", "mode": "greedy", "shuffled_messages": False, "tasks": 100}
        write_evaluation(folder, {**about, **result, "fields": fields}, "step_000001-greedy")
    return runs_of(tmp_path)


def test_a_failed_gate_ends_the_command_with_1_and_a_reason_for_people_and_for_ci(tmp_path: Path) -> None:
    files = ["--junit", str(tmp_path / "gates.xml"), "--markdown", str(tmp_path / "gates.md")]
    gates = ["--fail-if", "accuracy < -1%", "--fail-if", "cost_tokens > +50%"]
    result = CliRunner().invoke(app, ["compare", *runs(tmp_path), *gates, *files])
    assert result.exit_code == 1
    assert "failed: accuracy < -1% (greedy): accuracy went from 90.0% to 88.0% on 100 tasks" in result.output
    assert "passed: cost_tokens > +50% (greedy)" in result.output
    assert "greedy: newly failed: 2 (88, 89); newly solved: 0" in result.output

    (suite,) = ElementTree.parse(tmp_path / "gates.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["accuracy < -1%"]
    page = (tmp_path / "gates.md").read_text(encoding="utf-8")
    assert "- **failed**: `accuracy < -1%`: accuracy went from" in page
    assert page.startswith("**1 of 2 gates failed**")
    assert "| 100 | cost_tokens | 100 | 110 | +10 |  |" in page


def test_gates_that_hold_end_with_0_and_cohorts_have_rows_of_their_own(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", *runs(tmp_path), "--fail-if", "accuracy < -5%", "--group-by", "level"])
    assert result.exit_code == 0, result.output
    (before,), (after,) = (
        [e["measured"] for e in RunFolder.open(tmp_path / n).read_evaluations()] for n in ("before", "after")
    )
    found = compare_metrics(
        {"measured": before},
        {"measured": after, "fields": {"level": {str(n): str(n % 2) for n in range(100)}}},
        "level",
    )
    assert [(one.cohort, one.difference.tasks) for one in found if one.metric == "accuracy"] == [
        ("all", 100), ("level = 0", 50), ("level = 1", 50),
    ]  # fmt: skip
    refused = CliRunner().invoke(app, ["compare", *runs_of(tmp_path), "--group-by", "nothing"])
    assert refused.exit_code == 1
    assert "no field 'nothing'" in str(refused.exception) + refused.output


def runs_of(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("before", "after")]


def test_a_gate_with_any_number_of_spaces_is_read_or_refused_at_once() -> None:
    assert Gate.parse(f"accuracy{' ' * 5_000}<{' ' * 5_000}-1%").limit == -0.01
    with pytest.raises(ValueError, match="write a metric"):
        Gate.parse(f"accuracy{' ' * 5_000}x")


def test_a_limit_beyond_all_numbers_is_refused() -> None:
    for text in (f"accuracy < -{'9' * 400}", f"accuracy > {'9' * 400}%", f"seconds > {'9' * 400}%"):
        with pytest.raises(UserError, match="no number is as large as its limit"):
            Gate.parse(text)


@pytest.mark.parametrize("gate", ["cost_tokens < 0", "cost_tokens > 0", "cost_tokens after < 5", "cost_tokens > 5%"])
def test_what_is_no_number_fails_every_gate(gate: str) -> None:
    after = evaluation(cost_tokens=[(math.nan, 1.0)] * 100)
    assert check_gates([gate], BEFORE, after)[0].failed
