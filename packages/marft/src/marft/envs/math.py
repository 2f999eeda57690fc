"""Mathematics problems of published collections or of a table of one's own, graded by math-verify."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.config.settings import CountOrNone, Filled, Positive
from marft.envs.answering import Answering
from marft.envs.problems import Layout, problems_of
from marft.envs.revising import Revising
from marft.envs.rows import FORMATS, TablePath, read_table
from marft.envs.scripts import Script
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import bare, split_of
from marft.rewards.grader import Grader

MOST_STEPS = 32


class Math(EnvironmentPart):
    r"""Mathematics problems from files or a Hugging Face data set, graded by math-verify.

    Each has one answer; the reward is 1 when the answering agent's text states it, else 0. The answer is taken from the
    last ``\boxed{}``, else from what follows "the answer is". Without ``test_path`` the splits are made by each
    problem's own text (80 % training, 10 % validation, 10 % test); with it, the test split is that file, and its
    problems are kept out of the others. With several ``steps`` the team is shown its answer and may correct it, until
    it says that it is done; its last answer counts.
    """

    path: Annotated[
        TablePath, Field(min_length=1)
    ]  # .jsonl, .json, .csv, .parquet, a saved data set, or an id on the hub
    test_path: TablePath = ""  # the test split; "": a tenth of path
    subset: str = ""  # of a Hugging Face data set
    split: str = "train"  # the split that is read, of a Hugging Face data set
    test_split: str = "test"  # the split that is read, of the data set at test_path
    layout: Layout = "auto"  # whose columns they are; "auto": by the first row; "columns": those that are named
    question: str = ""  # a column; "": the layout's
    answer: str = ""  # a column; "": the layout's
    limit: CountOrNone = 0  # tasks of each split; 0: all
    timeout_seconds: Positive = 5.0  # for grading one answer
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 1  # that a team has; in each it may revise its answer
    done: Filled = "DONE"  # the word that hands an answer in, on a line of its own, where there are several steps

    @model_validator(mode="after")
    def _check_files(self) -> Math:
        for key in ("path", "test_path"):
            path = getattr(self, key)
            if Path(path).suffix.lower() in FORMATS and not os.path.isfile(path):  # noqa: PTH113  no path is too long
                raise PydanticCustomError("missing_file", "{key}: no file at {path}", {"key": key, "path": path})
        if self.question and self.question == self.answer:
            raise PydanticCustomError("columns", "question and answer are the same column")
        return self

    @property
    def episode_limit(self) -> int:
        """Steps after which an episode is over, at most."""
        return self.steps

    @cached_property
    def _grader(self) -> Grader:
        return Grader(self.timeout_seconds)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        tests = self._read(self.test_path, self.test_split) if self.test_path else []
        held_out = {bare(task.prompt) for task in tests}
        seen: set[str] = set()
        for task in self._read(self.path, self.split):
            if bare(task.prompt) in held_out or task.prompt in seen:
                continue
            seen.add(task.prompt)
            split = split_of(task.prompt)
            found["train" if self.test_path and split == "test" else split].append(task)
        found["test"] += tests
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    def _read(self, path: str, split: str) -> list[Task]:
        rows, name = read_table(path, self.subset, split), Path(path).stem
        return [
            Task(f"{name}/{number}", problem.question, {**problem.about, "answer": problem.answer, **tolerated})
            for number, problem in problems_of(rows, self.layout, self.question, self.answer)
            for tolerated in [{"tolerances": list(problem.tolerances)} if problem.tolerances else {}]
        ]

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split; problems without an answer, with pictures, and repeated ones are left out.

        Raises:
            ValueError: the data cannot be read, or lacks a column.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn | Revising:  # noqa: ARG002  nothing here is random
        if self.steps > 1:
            return Revising(task, lambda text: self.answer_grade(task, text), self.steps, self.done)
        return SingleTurn(task, lambda text: self.answer_grade(task, text))

    def script(self, skill: float = 1.0) -> Script:
        """Whoever is asked knows the answer."""
        return Answering(lambda task: str(task.data["answer"]), skill)

    def answer_grade(self, task: Task, text: str) -> Grade:
        """Return what a text is worth as the answer to a task."""
        tolerances = task.data.get("tolerances", [])
        right = bool(text.strip()) and self._grader.equal(task.data["answer"], text, tolerances, task.prompt)
        return Grade(float(right), right)
