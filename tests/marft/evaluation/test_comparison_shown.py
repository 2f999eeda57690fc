"""A comparison in a few lines: every figure in its place, and nothing of others that is obeyed."""

from __future__ import annotations

import io

from rich.console import Console

from marft.evaluation.metric_changes import Comparison, build_changes_table
from marft.evaluation.metric_tables import build_metric_rows
from tests.marft.evaluation.test_comparison import over, saved
from tests.marft.evaluation.test_gates import MISSED, SOLVED, evaluation

TOLD = """\
greedy, 20 tasks
metric    before  after       change          95 % interval
reward       0.5    0.8         +0.3     +0.1346 to +0.4492
accuracy   62.5%  68.8%  +6.2 points  -17.0 to +28.9 points
of all tasks newly failed: 1 (0); newly solved: 2 (10, 11)
passed: accuracy < -50%: accuracy went from 62.5% to 68.8% on 16 tasks (+6.2 points, 95 % -17.0 points to +28.9 points)
failed: reward > 0.1: reward went from 0.5 to 0.8 on 20 tasks (+0.3, 95 % +0.1346 to +0.4492)
failed: reward > 0.2: reward went from 0.5 to 0.8 on 20 tasks (+0.3, 95 % +0.1346 to +0.4492)
"""


def made(*gates: str, by: str = "") -> Comparison:
    """Of 20 tasks, of which success is known of 16, with levels and a metric of an agent."""
    before = evaluation(
        reward=[(1.0, 1.0)] * 10 + [(0.0, 1.0)] * 10, accuracy=[SOLVED] * 10 + [MISSED] * 6,
        agents__a__cost_tokens=[(5.0, 1.0)] * 20,
    )  # fmt: skip
    after = evaluation(
        reward=[(1.0, 1.0)] * 12 + [(0.5, 1.0)] * 8, accuracy=[MISSED] + [SOLVED] * 11 + [MISSED] * 4,
        agents__a__cost_tokens=[(6.0, 1.0)] * 20,
    )  # fmt: skip
    levels = {"level": {str(n): "hard" if n < 5 else "easy" for n in range(20)}}
    return over([saved(before, fields=levels)], [saved(after, fields=levels)], *gates, by=by)


def test_the_team_over_all_tasks_the_tasks_that_turned_and_gates() -> None:
    assert str(made("accuracy < -50%", "reward > 0.1", "reward > 0.2", by="level")) == TOLD.rstrip()


def test_in_a_line_stand_accuracy_or_else_reward_its_interval_and_how_many_gates_failed() -> None:
    said = "greedy: accuracy 62.5% → 68.8% (+6.2 points, -17.0 to +28.9 points)"
    gates = ("accuracy < -50%", "reward > 0.1", "reward > 0.2")
    assert repr(made(*gates, by="level")) == f"Comparison({said}; 2 of 3 gates failed)"
    assert repr(made()) == f"Comparison({said})"
    paid = evaluation(reward=[(1.0, 1.0)])
    assert repr(over([saved(paid)], [saved(paid)])) == "Comparison(greedy: reward 1 → 1 (+0))"


def test_what_nothing_was_measured_of_is_named_all_the_same() -> None:
    before, after = saved(evaluation(reward=[(1.0, 1.0)])), saved(evaluation(other=[(1.0, 1.0)]), "sampled")
    held = over([before, {**before, "mode": "sampled"}], [before, after])
    assert repr(held) == "Comparison(greedy: reward 1 → 1 (+0); sampled)"
    assert str(held).splitlines()[-2].startswith("sampled, ")


def test_what_is_0_on_both_sides_is_shown_only_where_0_says_something() -> None:
    both = saved(evaluation(reward=[(0.0, 1.0)], handoff_loop_rate=[(0.0, 1.0)], re_ask_rate=[(0.0, 1.0)]))
    loops = saved(evaluation(reward=[(0.0, 1.0)], handoff_loop_rate=[(1.0, 2.0)], re_ask_rate=[(0.0, 1.0)]))
    assert [line.split()[0] for line in str(over([both], [both])).splitlines()[2:]] == ["reward"]
    shown = str(over([both], [loops]))
    assert "handoff_loop_rate" in shown
    assert "re_ask_rate" not in shown


def test_in_a_notebook_words_stand_left_and_figures_right() -> None:
    held = made("accuracy < -50%", "reward > 0.2")
    page = held._repr_html_()
    assert page.count("left") == 3, "the heading and the names of two metrics"
    assert '<td style="text-align: left">reward</td><td style="text-align: right">0.5</td>' in page
    assert "<p>of all tasks newly failed: 1 (0); newly solved: 2 (10, 11)</p>" in page
    assert "<li><b>passed</b>: <code>accuracy &lt; -50%</code>: accuracy went from" in page
    assert "<li><b>failed</b>: <code>reward &gt; 0.2</code>: reward went from" in page


def test_what_others_call_scenarios_and_cohorts_breaks_no_line_and_is_no_markup() -> None:
    evil = "<b>x</b>\x1b[2J\nsecond"
    side = saved(
        evaluation(reward=[(1.0, 1.0)] * 2),
        fields={"kind": dict.fromkeys("01", evil)},
        scenarios={"name": evil, "digest": "d" * 64},
    )
    held = over([side], [side], "reward[kind=*] < 0")
    said, page = str(held), held._repr_html_()
    assert len(said.splitlines()) == 4
    assert "<b>x" not in page
    assert page.count("&lt;b&gt;x") == 2
    assert "\x1b" not in said + page


def test_a_metric_of_another_version_is_a_number_and_hides_no_other() -> None:
    evil = "<b>x</b>\x1b[2J\nsecond"
    side = saved(evaluation(**{evil: [(1.0, 2.0)] * 2, "reward": [(1.0, 1.0)] * 2}))
    held = over([side], [side])
    said, page = str(held), held._repr_html_()
    assert [line.split()[-3:] for line in said.splitlines()[2:]] == [["0.5", "0.5", "+0"], ["1", "1", "+0"]]
    assert "&lt;b&gt;x" in page
    assert "\x1b" not in said + page
    assert [row.label for row in build_metric_rows([side], omitted=())] == ["reward"]


SHOWN = """\
what changed
tasks  metric                before   after        change          95 % interval
20     reward                   0.5     0.8          +0.3     +0.1346 to +0.4492
16     accuracy               62.5%   68.8%   +6.2 points  -17.0 to +28.9 points
20     agents/a/cost_tokens       5       6            +1
       level = easy
15     reward                0.3333  0.7333          +0.4     +0.1999 to +0.5681
11     accuracy               45.5%   63.6%  +18.2 points   -9.3 to +43.1 points
15     agents/a/cost_tokens       5       6            +1
       level = hard
5      reward                     1       1            +0
5      accuracy              100.0%   80.0%  -20.0 points  -63.7 to +33.4 points
5      agents/a/cost_tokens       5       6            +1
"""


def printed(width: int) -> list[str]:
    """The table of all that changed, as a terminal of this width shows it."""
    console = Console(width=width, file=io.StringIO())
    console.print(build_changes_table(made(by="level").changes["greedy"], "what changed"))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_in_a_terminal_words_stand_left_figures_right_and_in_a_narrow_one_nothing_is_left_out() -> None:
    assert printed(120) == SHOWN.splitlines()
    narrow = printed(40)
    assert not [line for line in narrow if "…" in line]
