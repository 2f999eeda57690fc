"""``marft show``: an episode of several steps, and how one task went over the steps of a run."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from marft.cli.show import render_history, render_transcript
from marft.common.types import Choice, Episode, Observation, Option, Transition
from marft.evaluation.transcripts import PromptDecoder, find_new_actions, read_task_episodes, select_attempts
from marft.runs.episode_files import write_episodes
from tests.episodes import make_action
from tests.marft.cli.test_show import episode, lost


def printed(shown: Iterable[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=200)
    for each in shown:
        console.print(each)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.fixture
def nobody(tmp_path: Path) -> PromptDecoder:
    """No recipe, and so no tokenizer."""
    return PromptDecoder(tmp_path / "config.toml")


def two_steps() -> Episode:
    one = episode(said="later")
    first, second = one.actions
    second = replace(second, key=second.key._replace(step=1), sees=())
    steps = tuple(Transition(Observation(f"o{step}"), 0.5 + step, {}, {}) for step in range(2))
    return replace(one, actions=(first, second), transitions=steps)


def test_each_action_is_shown_once_under_what_its_step_shows(nobody: PromptDecoder) -> None:
    text = printed(render_transcript(two_steps(), "", nobody))
    parts = ["o0", "the plan", "step 0 earns the team 0.5", "o1", "later", "step 1 earns the team 1.5"]
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert "earns the team" not in printed(render_transcript(episode(), "", nobody))


def test_of_a_choice_its_place_is_told_counted_from_1(nobody: PromptDecoder) -> None:
    one = episode()
    options = tuple(Option(np.array([n], np.int32), 1.0) for n in range(3))
    chose = replace(one.actions[1], choice=Choice(options, 1, np.zeros(3, np.float32)))
    assert "0/actor/0 chooses 2 of 3," in printed(
        render_transcript(replace(one, actions=(one.actions[0], chose)), "", nobody)
    )


def test_answers_are_compared_between_attempts_that_were_scored(nobody: PromptDecoder) -> None:
    attempts = [(1, lost(0, "x")), (2, episode(0, "a")), (4, episode(0, "b")), (4, episode(1, "c")), (6, lost(0, "x"))]
    text = printed(render_history(attempts, nobody))
    assert "--- step 2 #0 +++ step 4 #0 @@ -1 +1 @@ -a +b" in text
    assert "answered the same" not in text
    assert "2 × failed: x" in text
    assert "1 0 failed the answer" in text  # and no reward


def test_answers_that_are_alike_are_said_to_be(nobody: PromptDecoder) -> None:
    text = printed(render_history([(1, episode(0, "a")), (2, episode(0, "a"))], nobody))
    assert "step 1 #0 and step 2 #0 answered the same" in text
    assert "---" not in text


def test_a_task_is_found_by_its_whole_name_and_no_part_of_it(tmp_path: Path) -> None:
    episodes = [episode(1, task="sum/1"), episode(11, task="sum/1"), episode(1, task="sum/11"), episode(0, task="a#b")]
    assert select_attempts(episodes, "sum/1") == episodes[:2]
    assert select_attempts(episodes, "sum/1#1") == episodes[:1]
    write_episodes(tmp_path / "step_000001.parquet", episodes)
    assert len(read_task_episodes(tmp_path / "step_000001.parquet", "a#b#0")) == 1


def test_of_what_an_agent_said_itself_only_the_last_is_new_to_it() -> None:
    first = make_action("a")
    second = replace(make_action("a", step=1, sees=("0/b/0", first.id)), continues=(first.id,))
    third = replace(
        make_action("a", step=2, sees=("0/b/0", first.id, second.id, "2/b/0")), continues=(first.id, second.id)
    )
    by_id = {action.id: action for action in (first, second, third)}
    assert find_new_actions(second, by_id) == ["0/b/0", first.id]
    assert find_new_actions(third, by_id) == [second.id, "2/b/0"]
