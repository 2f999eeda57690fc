"""``report.html``: what it shows of a run, and what it does with what cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from marft.cli.handlers import report
from marft.common.types import Episode, Observation, Task, Transition
from marft.evaluation.report import (
    Curve,
    compare_curves,
    draw_main_curves,
    line_style,
    other_curves,
    shorten_name,
    write_report,
)
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from tests.episodes import make_action
from tests.helpers import settings, write_evaluation

DOT = re.compile(r"<use [^>]*style=\"fill: #1f77b4")


def rows(**metrics: Sequence[float | None]) -> list[Mapping[str, Any]]:
    named = {name.replace("__", "/"): values for name, values in metrics.items()}
    return [
        {"step": n + 1} | dict(zip(named, values, strict=True))
        for n, values in enumerate(zip(*named.values(), strict=True))
    ]


def page_of(folder: RunFolder, metrics: Sequence[Mapping[str, Any]]) -> str:
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in metrics))
    write_report(folder)
    return folder.report_path.read_text()


def episode(task: str, reward: float = 1.0, **changes: Any) -> Episode:
    made = Episode(
        Task(task, f"{task}?"), "train/0", 0, (make_action("actor", text=f"said of {task}"),), "terminated",
        (Transition(Observation(f"{task}?"), reward, {}, {}),),
    )  # fmt: skip
    return replace(made, **changes)


def test_reward_leads_where_no_success_is_known() -> None:
    known = rows(reward=[0.0, 1.0], accuracy=[0.5, 0.6])
    unknown = rows(reward=[0.0, 1.0], accuracy=[None, None])
    assert [curve.label for curve in draw_main_curves(known)] == ["accuracy", "reward"]
    assert [curve.label for curve in draw_main_curves(unknown)] == ["reward"]


def test_a_single_point_is_a_dot_and_several_are_a_line() -> None:
    (alone,), (line,) = draw_main_curves(rows(reward=[0.5])), draw_main_curves(rows(reward=[0.5, 0.7]))
    assert DOT.search(alone.image)
    assert not DOT.search(line.image)


def test_agents_and_terms_have_lines_of_their_own() -> None:
    both = rows(agents__actor__kl=[0.1, 0.2], agents__planner__kl=[0.2, 0.3], kl=[0.1, 0.2])
    (curve,) = draw_main_curves(both)
    assert re.findall(r"<!-- (actor|planner|team) -->", curve.image) == ["actor", "planner"]
    (terms,) = draw_main_curves(rows(rewards__format=[0.0, 1.0], rewards__length=[1.0, 1.0]))
    assert re.findall(r"<!-- (format|length) -->", terms.image) == ["format", "length"]


def lines_of(number: int, steps: int = 2) -> Curve:
    """The KL of so many agents."""
    (curve,) = draw_main_curves(
        [{"step": n, **{f"agents/a{i}/kl": n * i for i in range(number)}} for n in range(1, steps + 1)]
    )
    return curve


@pytest.mark.parametrize(
    ("number", "height", "letters", "strokes"),
    [
        (1, 2.5, {"0.09"}, {"1.6"}), (2, 2.5, {"0.09"}, {"1.6"}), (6, 2.5, {"0.09"}, {"1.6"}),
        (7, 2.5 + 3 * 0.17, {"0.09", "0.07"}, {"1.1"}), (12, 2.5 + 4 * 0.17, {"0.09", "0.07"}, {"1.1"}),
    ],
)  # fmt: skip
def test_a_picture_of_many_lines_is_higher_and_has_thinner_lines_and_smaller_names(
    number: int, height: float, letters: set[str], strokes: set[str]
) -> None:
    picture = lines_of(number).image
    (size,) = re.findall(r'<svg[^>]* width="([0-9.]+)pt" height="([0-9.]+)pt"', picture)
    assert tuple(map(float, size)) == pytest.approx((4.4 * 72, height * 72))
    assert set(re.findall(r"scale\(([0-9.]+) -", picture)) == letters
    assert set(re.findall(r"stroke-width: ([0-9.]+)", picture)) - {"0.8"} == strokes  # 0.8: ticks and axes
    assert ("stroke-dasharray" in picture) is (number > 10)
    assert ('id="legend_1"' in picture) is (number > 1)


def test_names_of_many_lines_stand_below_them_in_three_columns_and_nothing_covers_lines() -> None:
    picture = lines_of(7).image
    before, _, legend = picture.partition('<g id="legend_1">')
    axes = float(re.findall(r'<g id="patch_2">\s*<path d="M [0-9.]+ ([0-9.]+)', before)[0])
    names = re.findall(r"<!-- (a\d) -->\s*<g transform=\"translate\(([0-9.]+) ([0-9.]+)\)", legend)
    assert [name for name, _, _ in names] == [f"a{n}" for n in range(7)]
    assert len({x for _, x, _ in names}) == 3
    assert all(float(y) > axes for _, _, y in names)
    left, right = map(float, re.findall(r'd="M ([0-9.]+) .*?L ([0-9.]+) [0-9.]+ *\n?"', legend, re.DOTALL)[0])
    assert right - left == pytest.approx(17.5)  # long enough to show dashes
    for some in (legend, lines_of(2).image.partition('<g id="legend_1">')[2]):
        assert some
        assert 'id="patch' not in some


def test_a_picture_has_a_faint_grid_whole_steps_two_axes_and_dots_that_can_be_seen() -> None:
    picture = lines_of(1).image
    steps = re.findall(r'<g id="xtick_\d+">.*?<!-- (.*?) -->', picture, re.DOTALL)
    assert steps == ["1", "2"]
    rules = re.findall(r"stroke: #b0b0b0; stroke-opacity: ([0-9.]+)", picture)
    assert len(rules) == picture.count('id="xtick_') + picture.count('id="ytick_')
    assert set(rules) == {"0.25"}
    assert picture.count('<g id="patch_') == 4  # the page, the picture, the axes on the left and below
    assert re.search(r'<path id="[^"]*" d="M 0 2\.5 ', lines_of(1, steps=1).image)  # five points wide


def test_a_name_of_24_letters_is_whole_and_a_longer_one_is_cut_to_24() -> None:
    assert shorten_name("a" * 12 + "b" * 12) == "a" * 12 + "b" * 12
    assert shorten_name("a" * 12 + "b" * 13) == "a" * 11 + "…" + "b" * 13


def test_a_curve_says_its_unit_and_which_lines_it_has() -> None:
    (rewards, kl) = draw_main_curves(rows(reward=[0.0, 1.0], kl=[0.1, 0.2]))
    assert not rewards.meaning.endswith(", ")
    assert kl.meaning.endswith(", nats")
    both = rows(rewards__format=[0.0, 1.0], agents__a__rewards__format=[1.0, 1.0])
    assert re.findall(r"<!-- ([a-z].*?) -->", draw_main_curves(both)[0].image) == ["format", "a, format"]
    norms = rows(gradient_norm=[1.0, 2.0], policies__p__gradient_norm=[1.0, 1.0])
    assert re.findall(r"<!-- ([a-z].*?) -->", other_curves(norms)[0].image) == ["team", "p"]


def test_what_is_0_throughout_has_no_curve_where_0_says_nothing() -> None:
    assert draw_main_curves(rows(own_reward=[0.0, 0.0], agents__a__own_reward=[0.0, 0.0])) == []
    (own,) = draw_main_curves(rows(agents__a__own_reward=[0.0, 0.5]))
    assert own.label == "own reward"
    (reward,) = draw_main_curves(rows(reward=[0.0, 0.0]))
    assert reward.label == "reward"


def test_runs_stand_beside_each_other_in_one_picture_a_metric() -> None:
    one, two = rows(reward=[0.0, 1.0], kl=[0.1, 0.2]), rows(reward=[0.5, 0.5], kl=[None, None])
    reward, kl = compare_curves({"one": one, "two": two})
    assert (reward.label, kl.label) == ("reward", "KL")
    assert re.findall(r"<!-- ([a-z].*?) -->", reward.image) == ["one", "two"]
    assert not reward.meaning.endswith(", ")
    assert kl.meaning.endswith(", nats")
    assert compare_curves({}) == []


def test_whatever_else_changed_can_be_unfolded_the_users_own_too() -> None:
    metrics = rows(reward=[0.0, 1.0], gradient_norm=[1.0, 1.0], my_own=[3.0, 4.0], constant=[1.0, 1.0])
    assert [curve.label for curve in other_curves(metrics)] == ["my_own"]
    metrics = rows(my_own=[3.0, 4.0], reward_std=[0.1, 0.2])
    assert [curve.label for curve in other_curves(metrics)] == ["reward deviation", "my_own"]


def test_the_same_tasks_stand_side_by_side_before_and_after(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    for checkpoint in ("base", "step_000001", "step_000002"):
        examples = [
            {"observation": task, "success": checkpoint != "base", "reward": 1.0,
             "actions": [{"agent": "actor", "step": 0, "calls": [], "text": f"{checkpoint} says {task}"}]}
            for task in ("one", "two")
        ]  # fmt: skip
        table = {
            "checkpoint": checkpoint, "mode": "sampled", "shuffled_messages": False, "tasks": 2, "failed": 0,
            "unknown": 0, "accuracy": 1.0, "interval": [0.0, 1.0], "reward": 1.0, "reward_interval": [0.0, 1.0],
            "outcomes": {}, "rewards": {}, "examples": examples,
        }  # fmt: skip
        write_evaluation(folder, table, checkpoint)
    said = re.findall(r'class="said">(.*?)</div>', page_of(folder, []))
    assert said == ["base says one", "step_000002 says one", "base says two", "step_000002 says two"]


def test_while_nothing_is_evaluated_the_newest_episodes_are_shown_one_a_task(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    played = [episode("a"), episode("a", sample=1), episode("b"), episode("c", status="failed", error="it broke")]
    write_episodes(folder.episodes / "step_000001.parquet", [episode("old")])
    write_episodes(folder.episodes / "step_000002.parquet", played)
    assert re.findall(r'class="said">(.*?)</div>', page_of(folder, [])) == ["said of a", "said of b"]


def test_why_episodes_were_dropped_is_counted(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    lost = [episode("a", status="failed", error="it broke"), episode("b", status="failed", error="it broke")]
    write_episodes(folder.episodes / "step_000001.parquet", [*lost, episode("c")])
    page = page_of(folder, [{"step": 1, "episodes_dropped": 2, "reward": 1.0}])
    assert "2 episodes could not be scored" in page
    assert "2 × failed: it broke" in page


def test_episodes_that_cannot_be_read_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    folder.episodes.mkdir(exist_ok=True)
    (folder.episodes / "step_000001.parquet").write_bytes(b"PAR1 damaged")
    page = page_of(folder, rows(reward=[0.5, 0.7]))
    assert page.count("step_000001.parquet") == 1
    assert "mean team reward" in page


def test_a_page_fits_a_narrow_screen(tmp_path: Path) -> None:
    page = page_of(RunFolder.create(settings("tiny", tmp_path)), rows(reward=[0.5, 0.7]))
    assert 'name="viewport" content="width=device-width' in page
    assert "minmax(min(19rem, 100%), 1fr)" in page


def test_a_run_that_was_not_evaluated_is_named_and_not_left_out_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (RunFolder.create(settings("tiny", tmp_path, name=name)) for name in ("first", "second"))
    report(first.path, [second.path])
    problem = f"{second.path} has no evaluated checkpoint; run:  marft eval {second.path}"
    assert f"not shown: {problem}" in capsys.readouterr().out
    assert f"Not shown: {problem}" in first.report_path.read_text()


def test_what_guards_have_seen_is_said_on_the_page(tmp_path: Path) -> None:
    folder = RunFolder.create(settings(output=tmp_path))
    folder.begin(settings(output=tmp_path))
    sound, moved = ([{"step": n, "agents/actor/kl": kl} for n in range(1, 9)] for kl in (0.001, 0.3))
    assert "guards.kl" not in page_of(folder, sound)
    assert "step 5: actor: each of the last 5 steps moved it by 0.3 nats a token or more" in page_of(folder, moved)


def evaluated(folder: RunFolder, checkpoint: str, mode: str = "sampled", **changes: Any) -> None:
    table = {
        "checkpoint": checkpoint, "mode": mode, "shuffled_messages": False, "tasks": 2, "failed": 0, "unknown": 0,
        "accuracy": 1.0, "interval": [0.0, 1.0], "reward": 1.0, "reward_interval": [0.0, 1.0], "outcomes": {},
        "rewards": {}, "examples": [],
    }  # fmt: skip
    write_evaluation(folder, {**table, **changes}, f"{checkpoint}-{mode}")


def test_metrics_over_trajectories_stand_on_the_page_for_team_and_agents(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    assert "Over trajectories" not in page_of(folder, [])  # nothing was evaluated
    for checkpoint, failed in (("base", 3.0), ("step_000002", 1.0)):
        measured = {
            "tool_error_rate": [failed, 4.0],
            "agents/actor/tool_error_rate": [failed, 4.0],
            "accuracy": [1.0, 1.0],
        }
        evaluated(folder, checkpoint, measured={"task": measured})
    table = page_of(folder, []).partition("Over trajectories")[2].partition("</table>")[0]
    assert re.findall(r'<th class="n">(.*?)</th>', table) == ["base sampled", "step_000002 sampled"]
    rows = re.findall(r"<tr.*?><td>(.*?)</td><td class=\"n\">(.*?)</td><td class=\"n\">(.*?)</td></tr>", table)
    assert rows == [("calls failed", "75%", "25%"), ("actor", "75%", "25%")]


def test_metrics_by_cohort_stand_on_the_page_but_of_fields_with_too_many(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    tasks = [f"t{n}" for n in range(50)]
    measured = {task: {"accuracy": [n % 2, 1.0]} for n, task in enumerate(tasks)}
    fields = {
        "<level>": {task: "hard" if n % 2 else "easy" for n, task in enumerate(tasks)},
        "pair": {task: str(n // 2) for n, task in enumerate(tasks)},
    }
    evaluated(folder, "base", measured=measured)
    assert "By cohort" not in page_of(folder, [])
    evaluated(folder, "base", measured=measured, fields=fields)
    section = page_of(folder, []).partition("By cohort")[2]
    assert re.findall(r"<th>(.*?)</th><th class=\"n\">(.*?)</th>", section) == [
        ("", "base sampled"), ("&lt;level&gt; = easy", "25 tasks"), ("&lt;level&gt; = hard", "25 tasks"),
    ]  # fmt: skip
    assert re.findall(r"<td>accuracy</td><td class=\"n\">(.*?)</td>", section) == ["0.0%", "100.0%"]
    assert "pair: more than 20 cohorts" in section


def test_several_attempts_and_the_worth_of_the_team_stand_on_the_page_where_they_were_asked(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    evaluated(folder, "base")
    assert not {"Over several attempts", "Is the team worth it?"} & set(
        re.findall("<h2>(.*?)</h2>", page_of(folder, []))
    )
    evaluated(folder, "last", passes={"pass@4": [0.5, [0.25, 0.75]]})
    folder.worth.mkdir()
    (folder.worth / "worth.json").write_text('{"headline": "the <b>team</b> is better"}')
    page = page_of(folder, [])
    assert '<td>pass@4</td><td class="n">50.0%</td><td class="n">25.0% to 75.0%</td>' in page
    assert "<p>the &lt;b&gt;team&lt;/b&gt; is better. <small>" in page


def test_tasks_stand_side_by_side_where_only_greedy_was_evaluated(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    for checkpoint in ("base", "step_000002"):
        said = [{"agent": "actor", "step": 0, "calls": [], "text": f"{checkpoint} says"}]
        example = {"observation": "one", "success": True, "reward": 1.0, "actions": said}
        evaluated(folder, checkpoint, "greedy", examples=[example])
    assert re.findall(r'class="said">(.*?)</div>', page_of(folder, [])) == ["base says", "step_000002 says"]


def test_no_two_lines_look_alike_however_many_there_are() -> None:
    styles = [line_style(number) for number in range(200)]
    assert len(set(styles)) == 200
    for first, second in pairwise(styles):
        channels = [[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour, _ in (first, second)]
        assert sum(abs(a - b) for a, b in zip(*channels, strict=True)) > 100  # neighbours in the legend least of all


def test_forty_runs_have_a_line_each_and_a_legend_below_them(tmp_path: Path) -> None:
    folders = []
    for number in range(40):
        run = settings(
            "tiny", tmp_path / str(number // 39), name="twin" if number >= 38 else f"run-{number:02}-{'x' * 40}"
        )
        folder = RunFolder.create(run)
        folder.metrics_path.write_text(
            "".join(json.dumps({"step": n, "reward": n * number / 9, "accuracy": None}) + "\n" for n in (1, 2))
        )
        folders.append(folder)
    write_report(folders[0], folders[1:])
    beside = folders[0].report_path.read_text().partition("Beside other runs")[2].partition("<h2>")[0]
    assert beside.count("<figure>") == 1  # accuracy is not known
    colours = re.findall(
        r'<path d="[^"]*" clip-path[^>]*style="fill: none; stroke(?:-dasharray: [^;]*; stroke-dashoffset: 0; stroke)?: (#[0-9a-f]{6})',
        beside,
    )
    lines = {colour for colour in colours if colour != "#b0b0b0"}
    assert len(lines) == 40
    names = re.findall(r"<!-- (run-[^ ]*|.*twin) -->", beside)
    assert len(set(names)) == 40  # long ones are cut in their middle, and equal ones told apart by where they are
    (height,) = re.findall(r'<svg[^>]*height="([0-9.]+)pt"', beside)
    assert float(height) > 300


def test_the_team_is_drawn_as_it_acted(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    assert "<h2>The team" not in page_of(folder, [])
    both = tuple(replace(make_action(role), ended=1.0) for role in ("reasoner", "actor"))
    write_episodes(folder.episodes / "step_000001.parquet", [episode("a"), episode("b", actions=both)])
    team = page_of(folder, []).partition("<h2>The team")[2].partition("<h2>")[0]
    assert "<!-- reasoner -->" in team
    assert "<!-- b #0 -->" in team


def test_a_page_holds_huge_and_odd_things_and_loads_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    huge = (make_action("actor", text="<script>alert(1)</script>" + "x" * 500_000),)
    write_episodes(folder.episodes / "step_000001.parquet", [episode("a", actions=huge)])
    page = page_of(folder, rows(reward=[None, 1e300, -1e300], accuracy=[None, None, None], kl=[1e-320, 0.0, 5.0]))
    assert len(page) < 600_000
    assert "<script" not in page
    assert "300,025 more characters" in page or "more characters" in page
    outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)', page)
    assert outside == []
