"""Mathematics environment: problems from published collections or a table, graded by math-verify."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import NonEmptyString, NonNegativeCount, Positive
from marft.envs.graded_sessions import Grade, RevisionSession, SingleTurn
from marft.envs.math_problems import Layout, read_problems
from marft.envs.scripted_policy import OraclePolicy, ScriptedPolicy
from marft.envs.splits import split_beside_tests
from marft.envs.table_rows import FORMATS, TablePath, read_table
from marft.rewards.grader import Grader, require_math_verify

MAX_STEPS = 32


class Math(Environment):
    r"""Mathematics problems from files or a Hugging Face data set, graded by math-verify.

    Each problem has one answer. The reward is 1 if the answering agent's text states it, else 0. The answer is
    taken from the last ``\boxed{}``, else from the text after "the answer is". Without ``test_path``, each
    problem's own text determines its split (80 % training, 10 % validation, 10 % test). With it, the test split is
    that file, and its problems are excluded from the other splits. With several ``max_steps``, the team sees its answer
    and may correct it, until it declares that it is done; its last answer counts.
    """

    path: Annotated[TablePath, Field(min_length=1)] = Field(
        description=".jsonl, .json, .csv or .parquet file, a saved data set, or an id on the Hugging Face Hub"
    )
    test_path: TablePath = Field(default="", description='data of the test split; "": a tenth of path')
    subset: str = Field(default="", description="configuration name of a Hugging Face data set")
    split: str = Field(default="train", description="split to read from a Hugging Face data set")
    test_split: str = Field(default="test", description="split to read from the data set at test_path")
    layout: Layout = Field(
        default="auto",
        description='layout of the columns; "auto": detected from the first row; "columns": the named columns',
    )
    question: str = Field(default="", description='column with the problem; "": the layout\'s')
    answer: str = Field(default="", description='column with the answer; "": the layout\'s')
    limit: NonNegativeCount = Field(default=0, description="maximum tasks in each split; 0: no limit")
    timeout_seconds: Positive = Field(default=5.0, description="timeout for grading one answer, in seconds")
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = Field(
        default=1, description="maximum steps per episode; the team may revise its answer at each step"
    )
    done_word: NonEmptyString = Field(
        default="DONE", description="word, alone on a line, that submits the answer early with several steps"
    )

    @model_validator(mode="after")
    def _check_files(self) -> Math:
        require_math_verify()
        for key in ("path", "test_path"):
            path = getattr(self, key)
            if Path(path).suffix.lower() in FORMATS and not os.path.isfile(path):  # noqa: PTH113  any path length
                raise PydanticCustomError("missing_file", "{key}: no file at {path}", {"key": key, "path": path})
        if self.question and self.question == self.answer:
            raise PydanticCustomError("columns", "question and answer are the same column")
        return self

    @property
    def max_episode_steps(self) -> int:
        """Maximum steps of an episode."""
        return self.max_steps

    @cached_property
    def _grader(self) -> Grader:
        return Grader(self.timeout_seconds)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        tests = self._read_tasks(self.test_path, self.test_split) if self.test_path else None
        return split_beside_tests(tests, self._read_tasks(self.path, self.split), self.limit)

    def _read_tasks(self, path: str, split: str) -> list[Task]:
        rows, name = read_table(path, self.subset, split), Path(path).stem
        tasks: list[Task] = []
        for number, problem in read_problems(rows, self.layout, self.question, self.answer):
            data: dict[str, object] = {**problem.metadata, "answer": problem.answer}
            if problem.tolerances:
                data["tolerances"] = list(problem.tolerances)
            tasks.append(Task(f"{name}/{number}", problem.question, data))
        return tasks

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split, without duplicates and without problems that lack an answer or need pictures.

        Raises:
            ValueError: the data cannot be read, or lacks a column.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn | RevisionSession:  # noqa: ARG002  no randomness
        """Return a new session."""
        if self.max_steps > 1:
            return RevisionSession(task, lambda text: self.answer_grade(task, text), self.max_steps, self.done_word)
        return SingleTurn(task, lambda text: self.answer_grade(task, text))

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return a scripted policy for which every agent knows the answer."""
        return OraclePolicy(lambda task: str(task.data["answer"]), skill)

    def answer_grade(self, task: Task, text: str) -> Grade:
        """Return a text's grade as the answer to a task."""
        tolerances = task.data.get("tolerances", [])
        is_correct = bool(text.strip()) and self._grader.matches_gold(
            task.data["answer"], text, tolerances, task.prompt
        )
        return Grade(float(is_correct), is_correct)
