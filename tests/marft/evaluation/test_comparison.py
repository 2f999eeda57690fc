"""Comparisons: which evaluations are held against each other, gates of cohorts and limits, for CI and from Python."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema

import marft
from marft.cli.errors import report_errors
from marft.cli.main import app
from marft.evaluation.comparison import compare_evaluations
from marft.evaluation.gates import check_gates
from marft.evaluation.metric_changes import Comparison, OutcomeChanges, compare_metrics, find_outcome_changes
from marft.evaluation.ratios import Ratio
from marft.runs.run_folder import RunFolder
from tests.helpers import settings, write_evaluation
from tests.marft.evaluation.test_gates import AFTER, BEFORE, MISSED, SOLVED, evaluation
from tests.sources import TESTS

LEVELS = {"level": {str(n): ("hard" if n < 20 else "easy") for n in range(100)}}
ON = {"name": "smoke", "digest": "d" * 64}
SCHEMA = TESTS / "junit-10.xsd"  # of Jenkins' xUnit plug-in


def saved(
    result: dict[str, Any], mode: str = "greedy", checkpoint: str = "step_000001", **about: Any
) -> dict[str, Any]:
    return {"checkpoint": checkpoint, "mode": mode, "shuffled_messages": False, "tasks": 100, **result, **about}


def over(before: list[dict[str, Any]], after: list[dict[str, Any]], *gates: str, by: str = "") -> Comparison:
    return compare_evaluations(before, after, ("runs/a", "runs/b"), gates, by)


@pytest.mark.parametrize(
    ("gate", "failed", "reason"),
    [
        ("accuracy after < 90%", True, "to 88.0%"), ("accuracy after < 85%", False, "to 88.0%"),
        ("accuracy after < 0.9", True, ""), ("cost_tokens after > 105", True, ""), ("cost_tokens after > 200", False, ""),
        ("accuracy[level=hard] < -2%", False, "on 20 tasks where level = hard"),
        ("accuracy[level=easy] < -2%", True, "on 80 tasks where level = easy"),
        ("accuracy [ level = easy ] after < 80%", False, "where level = easy"),
    ],
)  # fmt: skip
def test_gates_are_of_changes_of_what_is_after_and_of_cohorts(gate: str, failed: bool, reason: str) -> None:
    (verdict,) = check_gates([gate], BEFORE, {**AFTER, "fields": LEVELS})
    assert verdict.failed is failed
    assert reason in verdict.reason


def test_a_gate_of_every_cohort_is_a_verdict_for_each() -> None:
    verdicts = check_gates(["accuracy[level=*] < -2%"], BEFORE, {**AFTER, "fields": LEVELS})
    assert [verdict.failed for verdict in verdicts] == [True, False]  # easy, hard
    with pytest.raises(ValueError, match=r"no task has level = 'odd'; values: easy, hard, or \* for each"):
        check_gates(["accuracy[level=odd] < 0"], BEFORE, {**AFTER, "fields": LEVELS})
    with pytest.raises(ValueError, match="no field 'kind'"):
        check_gates(["accuracy[kind=odd] < 0"], BEFORE, {**AFTER, "fields": LEVELS})
    with pytest.raises(ValueError, match="cost_tokens is in tokens, and no share; leave out the %"):
        check_gates(["cost_tokens after > 5%"], BEFORE, AFTER)


@pytest.mark.parametrize("gate", ["reward < -1", "reward > 1", "reward after < 0", "reward after > 0"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_none_fails_every_gate(gate: str, number: float) -> None:
    one, two = evaluation(reward=[(1.0, 1.0)] * 3), evaluation(reward=[(1.0, 1.0), (number, 1.0), (1.0, 1.0)])
    assert [verdict.failed for verdict in check_gates([gate], one, two)] == [True]


def test_one_task_none_and_the_same_run_are_compared_too() -> None:
    one = [saved(evaluation(accuracy=[SOLVED]))]
    assert over(one, [saved(evaluation(accuracy=[MISSED]))], "accuracy < -1%").reasons == [
        "accuracy < -1% (greedy): accuracy went from 100.0% to 0.0% on 1 tasks (-100.0 points)"
    ]
    assert over([saved(BEFORE)], [saved(BEFORE)], "accuracy < -1%", "accuracy > +1%").passed
    with pytest.raises(ValueError, match="not evaluated in the same mode, or no task"):
        over([saved(evaluation())], [saved(evaluation())])
    with pytest.raises(ValueError, match=r"run:  marft eval runs/a runs/b --mode greedy,sampled$"):
        over([saved(BEFORE)], [saved(AFTER, "sampled")])


@pytest.mark.parametrize(
    ("evaluated", "said"),
    [
        ((False, False), "runs/a and runs/b have no evaluation; "),
        ((True, False), "runs/b has no evaluation; "),
        ((False, True), "runs/a has no evaluation; "),
    ],
)
def test_a_run_that_was_never_evaluated_is_named_with_one_command_for_both(
    evaluated: tuple[bool, bool], said: str
) -> None:
    with pytest.raises(ValueError, match=r":  marft eval runs/a runs/b$") as raised:
        over(*([saved(BEFORE)] if one else [] for one in evaluated))
    assert str(raised.value).startswith(said)


def test_tasks_that_newly_fail_and_those_newly_solved_are_counted_and_a_few_named(tmp_path: Path) -> None:
    after = saved(evaluation(accuracy=[MISSED] * 7 + [SOLVED] * 83 + [SOLVED] * 1 + [MISSED] * 9))
    found = over([saved(BEFORE)], [after], "accuracy < -1%", "accuracy < -50%")
    said = "newly failed: 7 (0, 1, 2, 3, 4 and 2 more); newly solved: 1 (90)"
    assert found.outcome_changes["greedy"].summary == said
    assert f"Of all tasks {said}." in found.as_markdown()
    (tmp_path / "gates.xml").write_text(found.as_junit(), encoding="utf-8")
    xmlschema.XMLSchema(SCHEMA).validate(tmp_path / "gates.xml")
    (failure,) = ElementTree.parse(tmp_path / "gates.xml").iter("failure")
    assert (failure.text or "").endswith(f"; of all tasks {said}")
    assert said not in failure.get("message", "")
    same = over([saved(BEFORE)], [saved(BEFORE)])
    assert same.outcome_changes["greedy"].summary == ""
    assert "newly" not in same.as_markdown()


def test_what_is_on_scenarios_is_held_against_the_same_scenarios_alone() -> None:
    held_out, smoke = saved(BEFORE), saved(BEFORE, scenarios=ON)
    worse = saved(AFTER, scenarios=ON)
    found = over([held_out, smoke], [held_out, worse], "accuracy < -1%")
    assert {label: [v.failed for v in some] for label, some in found.verdicts.items()} == {
        "greedy": [False], "greedy on smoke": [True],
    }  # fmt: skip
    other = saved(AFTER, scenarios={"name": "smoke", "digest": "e" * 64})
    with pytest.raises(ValueError, match=r"runs/a on 'smoke' \(dddddddd\) and runs/b on 'smoke' \(eeeeeeee\)"):
        over([smoke], [other])
    with pytest.raises(ValueError, match="runs/b on no set of scenarios"):
        over([smoke], [held_out])


def test_other_tasks_of_the_same_names_are_not_compared() -> None:
    one, two = (saved(BEFORE, prompts={"0": "a", "1": digest}) for digest in "bc")
    assert over([one], [one]).passed
    with pytest.raises(ValueError, match=r"different tasks of the same names: 1. Evaluate both"):
        over([one], [two])


def test_tasks_that_one_side_alone_has_are_no_others_and_the_first_of_many_are_named(tmp_path: Path) -> None:
    def on(digest: str, number: int) -> list[dict[str, Any]]:
        return [saved(BEFORE, prompts={str(n): digest for n in range(number)})]

    assert over(on("a", 9), on("a", 3)).passed
    with pytest.raises(ValueError, match=r"same names: 0, 1, 2, 3, 4\. Evaluate"):
        over(on("a", 5), on("b", 5))
    with pytest.raises(ValueError, match=r"same names: 0, 1, 2, 3, 4 and 2 more\. Evaluate"):
        over(on("a", 7), on("b", 9))


def test_tasks_turn_of_which_both_sides_know_and_half_of_the_attempts_solve_one() -> None:
    of = {
        "gone": ((1, 1), None), "new": (None, (1, 1)), "never known": ((0, 0), (0, 1)), "not any more": ((0, 1), (0, 0)),
        "half": ((2, 4), (1, 4)), "less": ((2, 5), (3, 5)), "same": ((1, 1), (1, 1)), "fell": ((1, 1), (2, 5)),
    }  # fmt: skip
    before, after = ({task: Ratio(*pair[n]) for task, pair in of.items() if pair[n]} for n in (0, 1))  # type: ignore[misc]
    found = find_outcome_changes(before, after)
    assert found == (["half", "fell"], ["less"])
    assert OutcomeChanges([], ["x"]).summary == "newly failed: 0; newly solved: 1 (x)"
    assert OutcomeChanges([*"abcde"], [*"uvwxyz"]).summary == (
        "newly failed: 5 (a, b, c, d, e); newly solved: 6 (u, v, w, x, y and 1 more)"
    )
    assert OutcomeChanges(["a\nb"], []).summary == "newly failed: 1 (a b); newly solved: 0"


def test_a_percentage_of_what_is_negative_is_of_its_size() -> None:
    one, two = evaluation(cost_tokens=[(-100.0, 1.0)] * 3), evaluation(cost_tokens=[(-102.0, 1.0)] * 3)
    assert [verdict.failed for verdict in check_gates(["cost_tokens < -5%", "cost_tokens < -1%"], one, two)] == [
        False,
        True,
    ]


def test_rewards_are_numbers_and_shares_are_percent() -> None:
    one, two = evaluation(reward=[(1.0, 1.0)] * 3), evaluation(reward=[(0.25, 1.0)] * 3)
    (verdict,) = check_gates(["reward < -1"], one, two)
    assert verdict.reason == "reward went from 1 to 0.25 on 3 tasks (-0.75)"


def test_a_role_with_a_dot_that_only_the_new_run_has_is_known_and_not_measured_before() -> None:
    after = evaluation(**{"agents__a.b__tool_error_rate": [(0.0, 1.0)] * 3})
    (verdict,) = check_gates(["agents.a.b.tool_error_rate > 1%"], BEFORE, after)
    assert verdict.failed
    assert verdict.reason == "agents/a.b/tool_error_rate was not measured on the same tasks before and after"


def test_of_a_metric_of_other_tasks_no_change_is_told() -> None:
    one, two = ({"measured": {task: {"accuracy": [1.0, 1.0]}}} for task in "ab")
    assert compare_metrics(one, two) == []


def test_the_last_checkpoint_counts_and_the_base_where_there_is_no_other() -> None:
    runs = [saved(BEFORE, checkpoint=name) for name in ("step_000002", "step_000010", "base")]
    runs[1] |= AFTER
    assert over([saved(BEFORE, checkpoint="base")], runs, "accuracy < -1%").reasons
    assert over(runs[:1], runs[::2], "accuracy < -1%").passed


def test_what_changed_of_a_cohort_is_of_its_tasks_alone() -> None:
    found = compare_metrics(BEFORE, {**AFTER, "fields": LEVELS}, "level")
    assert [
        (one.cohort, one.difference.tasks, one.difference.before, one.difference.after)
        for one in found
        if one.metric == "accuracy"
    ] == [("all", 100, 0.9, 0.88), ("level = easy", 80, 0.875, 0.85), ("level = hard", 20, 1.0, 1.0)]


def line(name: str, digest: str = "f" * 64) -> dict[str, Any]:
    return {"reorganized": {"name": name, "digest": digest}}


def test_a_team_that_was_reorganized_is_held_against_the_one_that_was_trained_where_that_is_asked_for() -> None:
    better = evaluation(accuracy=[SOLVED] * 95 + [MISSED] * 5)
    before, after = [saved(BEFORE), saved(better, **line("pair"))], [saved(better), saved(AFTER, **line("line"))]
    held = compare_evaluations(before, after, ("runs/a", "runs/b"), ["accuracy < -1%"], after_as="line")
    assert list(held.verdicts) == ["greedy as line"]
    (verdict,) = held.verdicts["greedy as line"]
    assert verdict.reason.startswith("accuracy went from 90.0% to 88.0%")
    with pytest.raises(
        ValueError, match=r"not evaluated in the same mode.*run:  marft eval runs/a runs/b --mode greedy$"
    ):
        compare_evaluations(before[1:], after, ("runs/a", "runs/b"), after_as="line")


def test_a_team_that_was_never_evaluated_as_asked_is_named_with_what_it_was_evaluated_as() -> None:
    def held(after: list[dict[str, Any]]) -> None:
        compare_evaluations([saved(BEFORE)], after, ("runs/a", "runs/b c"), after_as="my line")

    end = "; evaluate it:  marft eval 'runs/b c' --team-file 'my line.toml'"
    with pytest.raises(ValueError, match="was not evaluated as") as told:
        held([saved(AFTER)])
    assert str(told.value) == (
        "runs/b c was not evaluated as 'my line', but as nothing else than it was trained as" + end
    )
    with pytest.raises(ValueError, match="was not evaluated as") as told:
        held([saved(AFTER), *(saved(AFTER, **line(name)) for name in ("tree", "pair", "star", "tree", "ring"))])
    assert str(told.value) == "runs/b c was not evaluated as 'my line', but as pair, ring, star, tree" + end


def test_teams_that_are_not_the_same_are_named_with_what_each_was_evaluated_as() -> None:
    many = [saved(AFTER, **line(name, name)) for name in ("tree", "pair", "star", "ring")]
    with pytest.raises(ValueError, match="not evaluated as the same team") as told:
        over([saved(BEFORE)], many)
    assert str(told.value) == (
        "not evaluated as the same team: runs/a as it was trained and runs/b as pair, ring, star, tree; evaluate both "
        "with the same --team-file, or hold the second against the first as it was trained:  marft compare runs/a runs/b "
        "--team-name pair"
    )
    with pytest.raises(
        ValueError, match=r"runs/a as pair, ring, .* and runs/b as it was trained; .* --team-name pair$"
    ):
        over(many, [saved(BEFORE)])
    with pytest.raises(ValueError, match="not evaluated in the same mode"):  # so that this is not all that differs
        over([saved(BEFORE)], [saved(AFTER, "sampled", **line("pair"))])
    with pytest.raises(ValueError, match="not evaluated as the same team: runs/a as pair and runs/b as it was trained"):
        over([saved(BEFORE, "sampled", **line("pair"))], [saved(AFTER, "sampled")])


def test_teams_that_were_reorganized_in_the_same_way_are_compared() -> None:
    held = over([saved(BEFORE), saved(BEFORE, **line("pair"))], [saved(AFTER), saved(AFTER, **line("pair"))])
    assert list(held.changes) == ["greedy", "greedy as pair"]
    on = over([saved(BEFORE, scenarios=ON, **line("pair"))], [saved(AFTER, scenarios=ON, **line("pair"))])
    assert list(on.changes) == ["greedy on smoke as pair"]


def test_what_was_played_is_in_one_order_whatever_that_of_evaluations_is() -> None:
    sides = [
        saved(BEFORE, mode, scenarios={"name": name, "digest": name * 64} if name else {})
        for name in ("b", "", "a") for mode in ("sampled", "greedy")
    ]  # fmt: skip
    labels = ["greedy", "greedy on a", "greedy on b", "sampled", "sampled on a", "sampled on b"]
    assert list(over(sides, sides[::-1]).changes) == list(over(sides[::-1], sides).changes) == labels


def test_sets_of_scenarios_and_modes_are_named_in_one_order() -> None:
    one = [saved(BEFORE, scenarios={"name": name, "digest": name * 64}) for name in "dbca"]
    with pytest.raises(ValueError, match=r"runs/a on 'a' \(a{8}\), 'b' \(b{8}\), 'c' \(c{8}\), 'd' \(d{8}\) and"):
        over(one, [saved(BEFORE)])
    modes, nothing = ([saved(result, mode) for mode in "fdbeca"] for result in (BEFORE, evaluation()))
    with pytest.raises(ValueError, match=r"run:  marft eval runs/a runs/b --mode a,b,c,d,e,f$"):
        over(modes, nothing)
    with pytest.raises(ValueError, match="no task of theirs could be scored"):
        over(nothing, modes)


def test_sets_of_scenarios_and_teams_of_the_same_name_are_all_compared_and_told_apart() -> None:
    sides = [
        saved(BEFORE, scenarios={"name": "smoke", "digest": f"{digest}{'0' * 63}"}, **team)
        for digest in "ba" for team in ({}, line("pair", "d" * 64), line("pair", "c" * 64))
    ] + [saved(BEFORE, scenarios={"name": "other", "digest": "e" * 64})]  # fmt: skip
    assert list(over(sides, sides).changes) == [
        "greedy on smoke (a0000000)",
        "greedy on smoke as pair (a0000000 cccccccc)",
        "greedy on smoke as pair (a0000000 dddddddd)",
        "greedy on smoke (b0000000)",
        "greedy on smoke as pair (b0000000 cccccccc)",
        "greedy on smoke as pair (b0000000 dddddddd)",
        "greedy on other",
    ]
    worse = [
        saved(AFTER if n == 1 else BEFORE, scenarios={"name": "smoke", "digest": digest * 64})
        for n, digest in enumerate("abc")
    ]
    before = [saved(BEFORE, scenarios={"name": "smoke", "digest": digest * 64}) for digest in "abc"]
    assert [reason.partition(":")[0] for reason in over(before, worse, "accuracy < -1%").reasons] == [
        "accuracy < -1% (greedy on smoke (bbbbbbbb))"
    ]


def test_junit_names_what_was_played_the_gate_and_why_it_failed() -> None:
    found = over([saved(BEFORE)], [saved(AFTER)], "accuracy < -1%")
    text = found.as_junit()
    assert text.startswith("<?xml version='1.0'")
    assert text.endswith("</testsuites>\n")
    root = ElementTree.fromstring(text)
    assert root.get("name") == "marft compare"
    ((case,),) = root
    assert (case.get("classname"), case.get("name")) == ("marft.greedy", "accuracy < -1%")
    (failure,) = case
    (verdict,) = found.verdicts["greedy"]
    assert (failure.get("message"), failure.get("type")) == (verdict.reason, "gate")


def test_on_the_page_an_empty_line_stands_between_what_was_played() -> None:
    sides = [saved(BEFORE), saved(BEFORE, "sampled")]
    lines = over(sides, sides).as_markdown().split("\n")
    assert [n for n, text in enumerate(lines) if text == ""] == [1, 2, 7, 9, 10, 15]
    assert lines[8] == "## sampled"


@pytest.mark.parametrize("gates", [[], ["accuracy < -1%"], ["accuracy < -1%", "accuracy[level=*] after < 1%"]])
def test_junit_is_what_the_schema_of_ci_services_says(gates: list[str], tmp_path: Path) -> None:
    after = saved({**AFTER, "fields": LEVELS})
    found = over([saved(BEFORE), saved(BEFORE, "sampled")], [after, saved(AFTER, "sampled", fields=LEVELS)], *gates)
    (tmp_path / "gates.xml").write_text(found.as_junit(), encoding="utf-8")
    xmlschema.XMLSchema(SCHEMA).validate(tmp_path / "gates.xml")


def test_junit_counts_gates_and_those_that_failed() -> None:
    found = over([saved(BEFORE)], [saved(AFTER)], "accuracy < -1%", "accuracy < -9%", "accuracy < -8%")
    (suite,) = ElementTree.fromstring(found.as_junit())
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert [[child.tag for child in case] for case in suite] == [["failure"], ["system-out"], ["system-out"]]


def test_on_the_page_cohorts_are_folded_away_and_what_changed_over_all_tasks_is_not() -> None:
    page = over([saved(BEFORE)], [saved({**AFTER, "fields": LEVELS})], by="level").as_markdown()
    above, *folded = page.split("<details>")
    assert "| 100 | accuracy |" in above
    assert [part.count("</details>") for part in folded] == [1, 1]
    assert ["level = easy" in folded[0], "level = hard" in folded[1]] == [True, True]


def test_a_gate_with_a_mark_of_code_in_it_is_code_all_the_same() -> None:
    fields = {"kind": {str(n): "a`b" if n % 2 else "c" for n in range(100)}}
    page = over([saved(BEFORE)], [saved({**AFTER, "fields": fields})], "accuracy[kind=a`b] < 0").as_markdown()
    (line,) = (line for line in page.splitlines() if line.startswith("- "))
    assert "`accuracy[kind=a'b] < 0`" in line


def test_texts_of_others_neither_break_the_page_nor_are_obeyed_in_it(tmp_path: Path) -> None:
    odd = "</summary><script>x</script> | `b` [l](javascript:x) @all\x1b[31m\n# h"
    fields = {"kind": {str(n): odd if n % 2 else "plain" for n in range(100)}}
    found = over([saved(BEFORE)], [saved({**AFTER, "fields": fields})], "accuracy[kind=*] < -50%", by="kind")
    page = found.as_markdown()
    assert "<script>" not in page
    assert "[l](javascript" not in page
    assert not [line for line in page.splitlines() if line.startswith("# ")]
    rows = [line for line in page.splitlines() if line.startswith("| 50")]
    assert rows
    assert all(line.replace("\\|", "").count("|") == 7 for line in rows)
    (tmp_path / "gates.xml").write_text(found.as_junit(), encoding="utf-8")
    xmlschema.XMLSchema(SCHEMA).validate(tmp_path / "gates.xml")


def runs(tmp_path: Path) -> list[str]:
    for name, result in (("before", BEFORE), ("after", AFTER)):
        folder = RunFolder.create(settings("tiny", tmp_path, name=name))
        write_evaluation(folder, saved(result), "step_000001-greedy")
    return [str(tmp_path / name) for name in ("before", "after")]


def test_from_python_a_comparison_says_whether_it_passed_and_why_not(tmp_path: Path) -> None:
    before, after = runs(tmp_path)
    found = marft.compare(before, marft.load_run(after), fail_if="accuracy < -1%")
    assert isinstance(found, marft.Comparison)
    assert not found.passed
    assert found.reasons[0].startswith("accuracy < -1% (greedy): accuracy went from 90.0% to 88.0%")
    assert marft.compare(before, after, fail_if=["accuracy < -5%"]).passed
    assert {change.metric for change in found.changes["greedy"]} == {"accuracy", "cost_tokens"}


def test_printed_a_comparison_is_a_small_table_and_its_repr_a_line() -> None:
    gates = ["accuracy < -1%", "cost_tokens > +50%"]
    held = over([saved(BEFORE)], [saved({**AFTER, "fields": LEVELS})], *gates, by="level")
    lines = str(held).splitlines()
    assert lines[0] == "greedy, 100 tasks"
    assert lines[1].split() == ["metric", "before", "after", "change", "95", "%", "interval"]
    assert lines[2].startswith("accuracy")
    assert not [line for line in lines if "agents/" in line or "level" in line]
    assert len(lines) < 12
    assert [line.split(":")[0] for line in lines[-2:]] == ["failed", "passed"]
    assert repr(held).startswith("Comparison(greedy: accuracy ")
    assert repr(held).endswith("; 1 of 2 gates failed)")
    assert repr(over([saved(BEFORE)], [saved(AFTER)], *gates, "accuracy < -50%")).endswith("; 1 of 3 gates failed)")
    assert "failed" not in repr(over([saved(BEFORE)], [saved(AFTER)]))
    assert len(repr(held)) < 160
    page = held._repr_html_()
    assert page.count("<tr>") == 1 + sum(line.startswith(("accuracy", "cost")) for line in lines)
    assert page.count("<li>") == 2


def test_texts_of_others_are_shown_and_not_obeyed_in_a_notebook() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    measured = {**BEFORE["measured"]}
    side = {**BEFORE, "measured": {evil: measured[next(iter(measured))], **measured}}
    on = {"name": evil, "digest": "d" * 64}
    held = over([saved(side, scenarios=on)], [saved(side, scenarios=on)], "accuracy < -1%")
    assert "<script" not in held._repr_html_()
    assert "&lt;script&gt;" in held._repr_html_()
    assert "\x1b" not in str(held) + repr(held) + held._repr_html_()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--fail-if", "accuracy < -5%"], 0), (["--fail-if", "accuracy < -1%"], 1), (["--fail-if", "nonsense"], 2),
        (["--fail-if", "accuracy < 0", "--group-by", "nothing"], 2), (["--nonsense"], 2),
    ],
)  # fmt: skip
def test_a_gate_that_fails_ends_otherwise_than_a_command_that_is_wrong(
    words: list[str], status: int, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended, report_errors():
        app(["compare", *runs(tmp_path), *words], prog_name="marft")
    assert (ended.value.code or 0) == status


def test_a_damaged_evaluation_is_named_and_no_gate_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", *runs(tmp_path), "--fail-if", "accuracy < -99%"]
    (tmp_path / "after" / "evaluations" / "step_000001-greedy.json").write_text("{")
    with pytest.raises(SystemExit) as ended, report_errors():
        app(words, prog_name="marft")
    assert ended.value.code == 2
    assert "step_000001-greedy.json is damaged" in capsys.readouterr().err
    assert asdict(over([saved(BEFORE)], [saved(BEFORE)]))["verdicts"] == {"greedy": []}
