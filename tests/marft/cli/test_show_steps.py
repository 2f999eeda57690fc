"""``marft show``: an episode of several steps, and how one task went over the steps of a run."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from marft.cli.show import history, transcript
from marft.common.types import Choice, Episode, Observation, Option, Transition
from marft.evaluation.prompts import Recorded
from marft.evaluation.remembering import newly_seen
from marft.evaluation.transcripts import attempts_at, read_of
from marft.runs.episodes import write_episodes
from tests.episodes import make_action
from tests.marft.cli.test_show import episode, lost


def printed(shown: Iterable[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=200)
    for each in shown:
        console.print(each)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.fixture
def nobody(tmp_path: Path) -> Recorded:
    """No recipe, and so no tokenizer."""
    return Recorded(tmp_path / "config.toml")


def two_steps() -> Episode:
    one = episode(said="later")
    first, second = one.actions
    second = replace(second, key=second.key._replace(step=1), sees=())
    steps = tuple(Transition(Observation(f"o{step}"), 0.5 + step, {}, {}) for step in range(2))
    return replace(one, actions=(first, second), transitions=steps)


def test_each_action_is_shown_once_under_what_its_step_shows(nobody: Recorded) -> None:
    text = printed(transcript(two_steps(), "", nobody))
    parts = ["o0", "the plan", "step 0 earns the team 0.5", "o1", "later", "step 1 earns the team 1.5"]
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert "earns the team" not in printed(transcript(episode(), "", nobody))


def test_of_a_choice_its_place_is_told_counted_from_1(nobody: Recorded) -> None:
    one = episode()
    options = tuple(Option(np.array([n], np.int32), 1.0) for n in range(3))
    chose = replace(one.actions[1], choice=Choice(options, 1, np.zeros(3, np.float32)))
    assert "0/actor/0 chooses 2 of 3," in printed(transcript(replace(one, actions=(one.actions[0], chose)), "", nobody))


def test_answers_are_compared_between_attempts_that_were_scored(nobody: Recorded) -> None:
    attempts = [(1, lost(0, "x")), (2, episode(0, "a")), (4, episode(0, "b")), (4, episode(1, "c")), (6, lost(0, "x"))]
    text = printed(history(attempts, nobody))
    assert "--- step 2 #0 +++ step 4 #0 @@ -1 +1 @@ -a +b" in text
    assert "answered the same" not in text
    assert "2 × failed: x" in text
    assert "1 0 failed the answer" in text  # and no reward


def test_answers_that_are_alike_are_said_to_be(nobody: Recorded) -> None:
    text = printed(history([(1, episode(0, "a")), (2, episode(0, "a"))], nobody))
    assert "step 1 #0 and step 2 #0 answered the same" in text
    assert "---" not in text


def test_a_task_is_found_by_its_whole_name_and_no_part_of_it(tmp_path: Path) -> None:
    episodes = [episode(1, task="sum/1"), episode(11, task="sum/1"), episode(1, task="sum/11"), episode(0, task="a#b")]
    assert attempts_at(episodes, "sum/1") == episodes[:2]
    assert attempts_at(episodes, "sum/1#1") == episodes[:1]
    write_episodes(tmp_path / "step_000001.parquet", episodes)
    assert len(read_of(tmp_path / "step_000001.parquet", "a#b#0")) == 1


def test_of_what_an_agent_said_itself_only_the_last_is_new_to_it() -> None:
    first = make_action("a")
    second = replace(make_action("a", step=1, sees=("0/b/0", first.id)), continues=(first.id,))
    third = replace(
        make_action("a", step=2, sees=("0/b/0", first.id, second.id, "2/b/0")), continues=(first.id, second.id)
    )
    by_id = {action.id: action for action in (first, second, third)}
    assert newly_seen(second, by_id) == ["0/b/0", first.id]
    assert newly_seen(third, by_id) == [second.id, "2/b/0"]
