"""``marft play --fork-from``: what was recorded is served up to an action, and from there on it is sampled."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from marft.cli.live import EpisodeScreen, play_live
from marft.common.types import Fork
from marft.envs.tasks import read_tasks
from marft.evaluation.replay_point import ReplayPoint
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from tests.runs import finished
from tests.views import attempt, make_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("run"))[1]


def again(folder: RunFolder, index: int, action: str) -> tuple[str, list[str], list[str]]:
    """What was shown, what each action was recorded as, and what it is now."""
    shown = io.StringIO()
    recorded = read_episodes(folder.find_recorded(1))[index]
    screen = EpisodeScreen(Console(file=shown, width=200))
    episode = play_live(folder.settings(), folder, "last", 0, [], screen, f"1:{index}@{action}")
    assert episode.status == "terminated", episode.error
    assert episode.fork == Fork(recorded.name, action)
    assert episode.task.id == recorded.task.id
    return shown.getvalue(), [one.text for one in recorded.actions], [one.text for one in episode.actions]


def test_what_came_before_is_served_and_shown_as_recorded(run: RunFolder) -> None:
    shown, before, now = again(run, 2, "0/actor/0")
    assert now[0] == before[0]
    assert "0/reasoner/0, recorded" in shown
    assert "0/actor/0, recorded" not in shown
    assert "terminated: reward" in shown


def test_from_the_first_action_on_all_is_sampled_and_the_same_each_time(run: RunFolder) -> None:
    shown, _, now = again(run, 0, "0/reasoner/0")
    assert "recorded" not in shown
    assert again(run, 0, "0/reasoner/0")[2] == now


@pytest.mark.parametrize(("text", "said"), [
    ("1:0", "names no action"), ("x@0/actor/0", "names no action"), ("1:99@0/actor/0", "no episode"),
    ("9:0@0/actor/0", "recorded no episodes of step 9"), ("1:0@0/nobody/0", "there are: 0/reasoner/0, 0/actor/0"),
    ("last-greedy:0@0/actor/0", "no evaluation 'last-greedy'"),
])  # fmt: skip
def test_what_is_not_there_is_said_with_what_is(run: RunFolder, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReplayPoint.parse(text).build_attempt(run.settings(), run)


def test_a_fork_begins_under_the_seed_of_what_it_was_forked_from(tmp_path: Path) -> None:
    folder = RunFolder(make_run(tmp_path / "one", steps=0))
    task = read_tasks(folder.settings().environment, "train")[0]
    origin = attempt(1, 0, task=task)
    fork = attempt(1, 0, task=task, stream="train/0/fork/0", fork=Fork(origin.name, "0/actor/0"))
    write_episodes(folder.episodes / "step_000001.parquet", [origin, fork])
    replay = ReplayPoint.parse("1:1@0/actor/0").build_attempt(folder.settings(), folder).replay
    assert replay is not None
    assert (replay.stream, replay.sample, list(replay.actions)) == ("train/0", 0, ["0/reasoner/0"])


def test_a_task_that_the_environment_has_no_more_is_named(tmp_path: Path) -> None:
    folder = RunFolder(make_run(tmp_path / "one", steps=1))
    with pytest.raises(ValueError, match="has no task 't/0' any more"):
        ReplayPoint.parse("1:0@0/actor/0").build_attempt(folder.settings(), folder)


def test_a_recipe_has_nothing_to_play_again(run: RunFolder) -> None:
    with pytest.raises(ValueError, match="give the folder of a run"):
        play_live(run.settings(), None, "base", 0, [], EpisodeScreen(Console(file=io.StringIO())), "1:0@0/actor/0")
