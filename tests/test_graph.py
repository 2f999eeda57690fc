"""The picture of one episode: who depended on whom, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle
from rich.console import Console
from typer.testing import CliRunner

from marft.cli.main import app
from marft.evaluation.graph import draw, find_episode, timeline
from marft.evaluation.remembering import newly_seen
from marft.runs.episodes import write_episodes
from marft.runs.folder import RunFolder
from marft.types import Episode, Task
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
    patches = draw(episode()).axes[0].patches
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
    assert newly_seen(own, actions) == ["0/c/0"]
    assert newly_seen(later, actions) == ["1/c/0"]
    drawn = replace(episode(), actions=tuple(actions.values()))
    assert sum(isinstance(patch, FancyArrowPatch) for patch in draw(drawn).axes[0].patches) == 4


def test_the_terminal_shows_when_each_ran_and_what_it_saw() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(timeline(episode()))
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
