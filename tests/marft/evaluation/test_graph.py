"""The picture of one episode: who depended on whom, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.text import Text
from rich.console import Console
from typer.testing import CliRunner

from marft.cli.main import app
from marft.common.types import Action, Episode, Task
from marft.evaluation.episode_graph import build_timeline, draw_episode, to_file_name
from marft.evaluation.transcripts import find_episode, find_new_actions
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from tests.episodes import make_action
from tests.helpers import settings


def episode(sample: int = 0) -> Episode:
    actions = (
        replace(make_action("a", index=0), started=0.0, ended=1.0),
        replace(make_action("b", index=1), started=0.0, ended=2.0),
        replace(make_action("c", index=2, sees=("0/a/0", "0/b/0")), started=2.0, ended=4.0),
    )
    return Episode(Task("sum/1", "o"), "train/0", sample, actions, "terminated")


def test_a_box_an_action_and_an_arrow_a_dependency() -> None:
    patches = draw_episode(episode()).axes[0].patches
    boxes = [patch for patch in patches if isinstance(patch, Rectangle)]
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(0.0, 1.0), (0.0, 2.0), (2.0, 2.0)]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in patches) == 2


def test_an_agent_that_remembers_is_drawn_with_what_is_new_to_it() -> None:
    first, second, third = episode().actions
    own = replace(make_action("c", step=1), index=3, sees=("0/a/0", "0/b/0", "0/c/0"), continues=("0/c/0",))
    later = replace(
        make_action("c", step=2), index=4, sees=("0/a/0", "0/b/0", "0/c/0", "1/c/0"), continues=("0/c/0", "1/c/0")
    )
    actions = {action.id: action for action in (first, second, third, own, later)}
    assert find_new_actions(own, actions) == ["0/c/0"]
    assert find_new_actions(later, actions) == ["1/c/0"]
    drawn = replace(episode(), actions=tuple(actions.values()))
    assert sum(isinstance(patch, FancyArrowPatch) for patch in draw_episode(drawn).axes[0].patches) == 4


def test_the_terminal_shows_when_each_ran_and_what_it_saw() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(build_timeline(episode()))
    lines = console.export_text().splitlines()
    assert [line.count("█") for line in lines[1:4]] == [12, 24, 24]
    assert lines[3].index("█") == lines[1].index("█") + 24
    assert "0/a/0, 0/b/0" in lines[3]


def test_episodes_are_found_by_place_and_by_name() -> None:
    both = [episode(0), episode(1)]
    assert find_episode(both, "1") is find_episode(both, "sum/1#1") is find_episode(both, "sum/1 #1") is both[1]
    with pytest.raises(ValueError, match="there are 0 to 1, by task and sample sum/1#0, sum/1#1"):
        find_episode(both, "2")


def test_the_command_writes_a_picture(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    write_episodes(folder.episodes / "step_000003.parquet", [episode()])
    result = CliRunner().invoke(app, ["graph", str(folder.path)])
    assert result.exit_code == 0, result.output
    assert "<svg" in (folder.graphs / "step_000003-sum_1-0.svg").read_text()


def test_an_episode_of_a_task_with_spaces_is_found_by_its_name() -> None:
    episode = Episode(Task("two words", "?"), "train/0", 1, (), "terminated")
    assert find_episode([episode], "two words#1") is find_episode([episode], "two words #1") is episode


def acted(*spans: tuple[str, float, float], task: str = "t") -> Episode:
    """Actions of agents from one second to another; every one is the first call of its agent, in its own step."""
    actions = tuple(
        replace(make_action(agent, index=n, step=n, call=n + 1), started=start, ended=end)
        for n, (agent, start, end) in enumerate(spans)
    )
    return Episode(Task(task, "o"), "train/0", 2, actions, "terminated")


def boxes_of(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_agents_have_lanes_from_above_in_the_order_of_their_first_actions_and_each_its_color() -> None:
    figure = draw_episode(acted(("b", 0.0, 1.0), ("a", 1.0, 4.0), ("b", 4.0, 5.0)))
    (axes,) = figure.axes
    boxes = boxes_of(figure)
    assert [(box.get_x(), box.get_y(), box.get_width(), box.get_height()) for box in boxes] == [
        (0.0, 0.75, 1.0, 0.5), (1.0, -0.25, 3.0, 0.5), (4.0, 0.75, 1.0, 0.5),
    ]  # fmt: skip
    assert [to_hex(box.get_facecolor()) for box in boxes] == ["#1f77b4", "#ff7f0e", "#1f77b4"]
    assert {box.get_alpha() for box in boxes} == {0.75}
    assert [(text.get_text(), text.xy) for text in axes.texts] == [  # type: ignore[attr-defined]
        ("0.1", (0.5, 1)), ("1.2", (2.5, 0)), ("2.3", (4.5, 1)),
    ]  # fmt: skip
    assert {
        (text.get_horizontalalignment(), text.get_verticalalignment(), text.get_fontsize(), text.get_color())
        for text in axes.texts
    } == {("center", "center", 7.0, "white")}
    assert all(text.get_clip_on() and text.get_clip_box() for text in axes.texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert list(axes.get_yticks()) == [0, 1]
    assert axes.get_xlim() == pytest.approx((-0.05, 5.1))
    assert axes.get_ylim() == pytest.approx((-0.6, 1.6))
    assert tuple(figure.get_size_inches()) == pytest.approx((10.0, 2.0))
    assert axes.get_title(loc="left") == "t #2"
    assert axes.get_xlabel().startswith("seconds since the episode began")


def test_a_picture_has_an_axis_below_alone_and_room_for_names() -> None:
    figure = draw_episode(acted(("an agent with a long name", 0.0, 1.0)))
    (axes,) = figure.axes
    assert {side: spine.get_visible() for side, spine in axes.spines.items()} == {
        "left": False, "right": False, "top": False, "bottom": True,
    }  # fmt: skip
    assert [tick.tick1line.get_markersize() for tick in axes.yaxis.get_major_ticks()] == [0.0]
    assert next(tick.tick1line.get_markersize() for tick in axes.xaxis.get_major_ticks()) > 0.0
    figure.draw_without_rendering()
    (name,) = axes.get_yticklabels()
    assert name.get_window_extent().x0 >= 0.0
    (title,) = [text for text in axes.get_children() if isinstance(text, Text) and text.get_text() == "t #2"]
    assert title.get_fontsize() == 10.0


def test_an_arrow_leads_from_the_end_of_what_was_seen_to_the_beginning_of_the_action_that_saw_it() -> None:
    figure = draw_episode(episode())
    figure.draw_without_rendering()
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    paths = [np.asarray(arrow.get_path().vertices).tolist() for arrow in arrows]
    assert [path[0] for path in paths] == [pytest.approx([1.0, 2.0]), pytest.approx([2.0, 1.0])]
    assert [path[2] for path in paths] == [pytest.approx([2.0, 0.0], abs=0.03)] * 2
    assert all(path[1][0] < (path[0][0] + path[2][0]) / 2 for path in paths), "bent to the left"
    assert {(arrow.get_linewidth(), arrow.get_mutation_scale()) for arrow in arrows} == {(0.9, 9)}
    assert {to_hex(arrow.get_edgecolor()) for arrow in arrows} == {"#595959"}


def test_an_action_that_took_no_time_can_be_seen_and_what_was_seen_elsewhere_has_no_arrow() -> None:
    first, second, third = acted(("a", 0.0, 0.0), ("b", 4.0, 10.0), ("c", 10.0, 10.02)).actions
    seeing = replace(third, sees=("9/z/9", second.id))
    figure = draw_episode(replace(episode(), actions=(first, second, seeing)))
    assert [box.get_width() for box in boxes_of(figure)] == pytest.approx([0.004 * 10.02, 6.0, 0.004 * 10.02])
    figure.draw_without_rendering()
    (arrow,) = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert np.asarray(arrow.get_path().vertices).tolist()[0] == pytest.approx([10.0, 1.0])


def test_colors_of_more_than_ten_agents_begin_anew() -> None:
    boxes = boxes_of(draw_episode(acted(*((f"a{n}", 0.0, 1.0) for n in range(12)))))
    colors = [to_hex(box.get_facecolor()) for box in boxes]
    assert len(set(colors)) == 10
    assert colors[10:] == colors[:2]


def test_long_and_odd_names_are_cut_and_stay_on_one_line() -> None:
    (axes,) = draw_episode(acted(("a\n" + "b" * 99, 0.0, 1.0), task="t\n" + "u" * 99)).axes
    assert axes.get_title(loc="left") == f"t {'u' * 78} … (21 more characters) #2"
    (name,) = axes.get_yticklabels()
    assert name.get_text() == f"a {'b' * 78} … (21 more characters)"
    assert to_file_name("t" * 81) == "t" * 80


def rows_of(episode: Episode) -> list[list[str]]:
    table = build_timeline(episode)
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_a_row_of_the_timeline_shows_an_action_its_seconds_and_what_is_new_to_it() -> None:
    table = build_timeline(acted(("b", 0.0, 12.0), ("a", 12.0, 12.01), ("b", 47.0, 48.0)))
    assert [column.header for column in table.columns] == ["action", "0 s" + " " * 39 + "48.00 s", "sees"]
    assert len(str(table.columns[1].header)) == 49
    assert all(column.no_wrap for column in table.columns)
    assert (table.box, table.pad_edge) == (None, False)
    ids, bars, sees = ([str(cell) for cell in column.cells] for column in table.columns)
    assert ids == ["0/b/1", "1/a/2", "2/b/3"]
    assert bars == ["█" * 12, " " * 12 + "█", " " * 47 + "█"]
    assert sees == ["", "", ""]
    assert [str(cell.style) for cell in table.columns[1].cells] == ["color(1)", "color(2)", "color(1)"]  # type: ignore[union-attr]


def test_bars_stay_in_their_column_and_are_a_character_long_at_least() -> None:
    unknown = acted(("a", 0.0, 0.0), ("a", 0.0, 0.0))  # nobody knows how long it took
    assert rows_of(unknown)[1] == ["█", "█"]
    assert str(build_timeline(unknown).columns[1].header).endswith(" 1.00 s")
    _, bars, _ = rows_of(acted(("a", 48.0, 48.0), ("a", 0.0, 48.0), ("a", 46.6, 47.6), ("a", 3.9, 5.4)))
    assert bars == [" " * 47 + "█", "█" * 48, " " * 46 + "██", "   ██"]
    assert rows_of(replace(episode(), actions=())) == [[], [], []]
    draw_episode(replace(episode(), actions=()))


def test_colors_of_more_than_six_agents_begin_anew_in_a_terminal() -> None:
    table = build_timeline(acted(*((f"a{n}", 0.0, 1.0) for n in range(8))))
    styles = [str(cell.style) for cell in table.columns[1].cells]  # type: ignore[union-attr]
    assert styles == [f"color({n})" for n in (1, 2, 3, 4, 5, 6, 1, 2)]


def test_names_of_others_stay_on_one_line_of_the_timeline() -> None:
    odd: Action = replace(make_action("a\nb"), ended=1.0)
    seeing = replace(make_action("c", index=1, sees=(odd.id,)), ended=2.0)
    ids, _, sees = rows_of(replace(episode(), actions=(odd, seeing)))
    assert ids == ["0/a b/0", "0/c/0"]
    assert sees == ["", "0/a b/0"]


def test_the_first_four_episodes_are_named_where_none_is_found() -> None:
    with pytest.raises(
        ValueError, match=r"there are 0 to 5, by task and sample sum/1#0, sum/1#1, sum/1#2, sum/1#3, …$"
    ):
        find_episode([episode(n) for n in range(6)], "nothing")
