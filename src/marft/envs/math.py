"""Math problems from a JSONL file or a Hugging Face data set, graded by math-verify."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from marft.config.parts import EnvironmentPart
from marft.config.settings import CountOrNone, Filled, Positive, did_you_mean
from marft.envs.data_sets import read_dataset
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import split_of
from marft.game.answers import answer_in
from marft.game.environment import Split
from marft.rewards.grader import Grader
from marft.texts import storable
from marft.types import Task


class Math(EnvironmentPart):
    r"""Mathematics problems from a JSONL file or a Hugging Face data set, graded by math-verify.

    Each has one answer; the reward is 1 when the answering agent's text states it, else 0. The answer is taken from the
    last ``\boxed{}``, else from what follows "the answer is". Without ``test_path`` the splits are made by each
    problem's own text (80 % training, 10 % validation, 10 % test); with it, the test split is that file, and its
    problems are kept out of the others.
    """

    one_step: ClassVar[bool] = True

    path: Filled  # a JSONL file, or a data set's folder or id on the Hugging Face hub
    test_path: str = ""  # the test split; "": a tenth of path
    subset: str = ""  # of a Hugging Face data set
    split: str = "train"  # the split that is read, of a Hugging Face data set
    test_split: str = "test"  # the split that is read, of the data set at test_path
    question: Filled = "problem"  # a column
    answer: Filled = "answer"  # a column
    limit: CountOrNone = 0  # tasks of each split; 0: all
    timeout_seconds: Positive = 5.0  # for grading one answer

    @model_validator(mode="after")
    def _check_files(self) -> Math:
        for key in ("path", "test_path"):
            path = getattr(self, key)
            if path.endswith((".jsonl", ".json")) and not Path(path).is_file():
                raise PydanticCustomError("missing_file", "{key}: no file at {path}", {"key": key, "path": path})
        if self.question == self.answer:
            raise PydanticCustomError("columns", "question and answer are the same column")
        return self

    @cached_property
    def _grader(self) -> Grader:
        return Grader(self.timeout_seconds)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        tests = _read_tasks(self, self.test_path, self.test_split) if self.test_path else []
        held_out = {task.prompt for task in tests}
        seen: set[str] = set()
        for task in _read_tasks(self, self.path, self.split):
            if task.prompt in held_out or task.prompt in seen:
                continue
            seen.add(task.prompt)
            split = split_of(task.prompt)
            found["train" if self.test_path and split == "test" else split].append(task)
        found["test"] += tests
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split; problems without an answer and repeated problems are left out.

        Raises:
            ValueError: the data cannot be read, or lacks a column.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  nothing here is random
        return SingleTurn(task, lambda text: self._grade(task, text))

    def _grade(self, task: Task, text: str) -> Grade:
        right = bool(text.strip()) and self._grader.equal(task.data["answer"], text)
        return Grade(float(right), right)


def _read_tasks(settings: Math, path: str, split: str) -> list[Task]:
    is_file = path.endswith((".jsonl", ".json"))
    rows = _read_jsonl(path) if is_file else read_dataset(path, settings.subset, split)
    tasks = []
    for number, row in enumerate(rows):
        question, answer = (
            _text(row, key, f"{path}, row {number + 1}") for key in (settings.question, settings.answer)
        )
        if not question.strip():
            raise ValueError(f"environment: {path}, row {number + 1}: column {settings.question!r} is empty")
        gold = answer_in(answer)
        if gold:
            tasks.append(Task(f"{Path(path).stem}/{number}", question, {"answer": gold}))
    return tasks


def _text(row: Mapping[str, object], column: str, where: str) -> str:
    """What stands in a column, which is text, a number, or nothing."""
    if column not in row:
        raise ValueError(f"environment: {where} has no column {column!r}{did_you_mean(column, row)}")
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise ValueError(f"environment: {where}: column {column!r} is a {type(value).__name__}, not text or a number")
    text = "" if value is None else str(value)
    if storable(text) != text:
        raise ValueError(f"environment: {where}: column {column!r} is no whole text: {ascii(text)[:100]}")
    return text


def _read_jsonl(path: str) -> Iterable[Mapping[str, object]]:
    number = 0
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"environment: {path}, line {number} is no JSON object")
                yield row
    except OSError as error:
        raise ValueError(f"environment: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"environment: {path} is not UTF-8 after line {number}: {error.reason}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"environment: {path}, line {number} is not JSON: {error}") from error
