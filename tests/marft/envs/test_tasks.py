"""Reading an environment's tasks: ids that come twice, and all else that a run could not use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.common.types import Task
from marft.config import load_recipe, parse_recipe
from marft.config.interfaces.environment import Environment
from marft.envs.math import Math
from marft.envs.tasks import check_step_limit, digest_tasks, read_tasks
from marft.rollout.rollout_batch import load_training_tasks
from tests.helpers import recipe
from tests.satellites import NEEDS_ENVS


class Listed(Environment):
    """Tasks as they are given here."""

    given: Any = ()

    def tasks(self, split: str) -> Any:
        return self.given(split) if callable(self.given) else list(self.given)

    def start(self, task: Task, seed: int) -> Any:
        raise AssertionError("nobody plays here")


def boom(split: str) -> Any:
    raise KeyError(split)


def lazily(split: str) -> Iterator[Task]:
    yield Task("a", "?")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([Task("a", "1"), Task("b", "2"), Task("a", "3")], "training split, task 2: another one has the id 'a' too"),
        ([], "training split has no tasks"),
        ([Task("a", "1"), "b"], "task 1: it is a str, not a marft.common.types.Task"),
        ([Task(7, "1")], "task 0: its id is a int, not a text"),  # type: ignore[arg-type]
        ([Task("a", None)], "task 0: its prompt is a NoneType, not a text"),  # type: ignore[arg-type]
        ([Task("a", "half \ud83d")], r"its prompt is no whole text: 'half \\ud83d'"),
        ([Task("", "1")], "task 0: its id is empty"),
        (boom, r"tasks('train') raised KeyError: 'train' (test_tasks.py:"),
        (lazily, "returned a generator, not a list of tasks"),
        (lambda split: None, "raised TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_tasks_that_cannot_be_used_are_refused_by_name(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match="environment 'Listed', training split") as caught:
        read_tasks(Listed.model_construct(given=given), "train")
    assert told.replace("\\\\", "\\") in str(caught.value)


def test_tasks_that_are_fine_come_back_as_they_are() -> None:
    tasks = [Task("a", "1"), Task("b", "1")]
    assert read_tasks(Listed.model_construct(given=tasks), "test") == tasks


def test_the_digest_of_tasks_is_of_all_that_is_plain_at_any_depth() -> None:
    def of(**data: Any) -> str:
        return digest_tasks([Task("t", "p", data)])

    asked = {"questions": [{"text": "Where?", "answer": "Rome"}], "day": 1}
    other = {"questions": [{"text": "Where?", "answer": "Oslo"}], "day": 1}
    assert of(**asked) == of(day=1, questions=asked["questions"]) != of(**other)
    assert of(answer=object()) == of(answer=object())


def test_training_looks_at_the_validation_split_before_it_starts_where_it_will_be_needed() -> None:
    class Unvalidated(Listed):
        def tasks(self, split: str) -> Any:
            return [Task("a", "1")] if split == "train" else []

    run = parse_recipe(recipe())
    part = Unvalidated.model_construct()
    assert len(load_training_tasks(run.model_copy(update={"environment": part}))) == 1
    often = run.model_copy(update={"environment": part, "evaluation": run.evaluation.model_copy(update={"every": 5})})
    with pytest.raises(ValueError, match=r"validation split has no tasks; .* give it more, or name held-out ones"):
        load_training_tasks(often)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"problem": ["a"], "answer": "1"}', "line 2: column 'problem' is a list, not text or a number"),
        (b'{"problem": "a", "answer": true}', "line 2: column 'answer' is a bool, not text or a number"),
        (b'{"problem": " ", "answer": "1"}', "line 2: column 'problem' is empty"),
        (b'{"problem": "\\ud83d", "answer": "1"}', "line 2: column 'problem' is no whole text"),
        (b'{"problem": "a"}', "line 2 has no column 'answer'"),
        (b"[1]", "line 2 is a list; a row is an object"),
        (b'{"problem": ', "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b'{"problem": "\xff\xfe"}', "is not UTF-8 (invalid start byte); save it as UTF-8"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_rows_are_named(line: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps({"problem": "What is 1 + 1?", "answer": 2}).encode() + b"\n" + line)
    with pytest.raises(ValueError, match=r"^environment: ") as caught:
        read_tasks(Math(path=str(path)), "train")
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_goes_away_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}")
    environment = Math(path=str(path))
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*rows\.jsonl: No such file"):
        read_tasks(environment, "train")


class TestStepsOfAnEpisode:
    def needing(self, *fewest: object) -> list[Task]:
        return [Task(str(at), "x", {} if steps is None else {"fewest_steps": steps}) for at, steps in enumerate(fewest)]

    def test_where_no_task_can_be_solved_in_them_nothing_begins(self) -> None:
        with pytest.raises(ValueError, match=r"ends after 2 steps, and no task .* less than 3 .*; allow 5 or more"):
            check_step_limit(self.needing(5, 3, 4), 2)

    @pytest.mark.parametrize("fewest", [(3, 2), (3, None), (None,), ("3",)])
    def test_where_one_can_be_or_does_not_say_it_does(self, fewest: tuple[object, ...]) -> None:
        check_step_limit(self.needing(*fewest), 2)

    @NEEDS_ENVS
    def test_training_asks(self) -> None:
        with pytest.raises(ValueError, match=r"rollout\.max_steps: an episode ends after 1 steps"):
            load_training_tasks(load_recipe("relay", changes={"rollout.max_steps": 1}))
