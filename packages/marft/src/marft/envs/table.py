"""Table environment: a task per row, with a prompt and a graded answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.config.settings import LARGEST, CountOrNone, Filled, Fraction, Settings
from marft.envs.answering import Answering
from marft.envs.grading import Grading, is_missing, right_answers
from marft.envs.gradings import Choice, Exact, GradingSetting
from marft.envs.prompts import CHOICES, check_template, prompt_of
from marft.envs.rows import Cells, Row, TablePath, read_table
from marft.envs.scripts import Script
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import bare, share_of
from marft.rewards.comparing import numbers_in


class Shares(Settings):
    """Fractions for splits without a separate table."""

    validation: Fraction = 0.1  # fraction of the rows
    test: Fraction = 0.1  # fraction of the rows

    @model_validator(mode="after")
    def _leave_some(self) -> Shares:
        if self.validation + self.test >= 1:
            raise PydanticCustomError("shares", "leave nothing to train on; together they must be below 1")
        return self


class Parts(Settings):
    """Split names in a data set with several splits of its own."""

    train: Filled = "train"  # split to read from path, or from train
    validation: Filled = "validation"  # split to read from validation
    test: Filled = "test"  # split to read from test


class Table(EnvironmentPart):
    """One task per row, graded by an answer column or by a function.

    ``path`` is one table, whose rows are divided by the text of their prompts. Alternatively, ``train`` is one,
    with ``validation`` and ``test`` beside it if these have tables of their own. Unusable rows raise an error with
    file and line; only rows that ``leave_out`` names are skipped.
    """

    one_step: ClassVar[bool] = True

    # one table, divided by shares; a file, a folder of save_to_disk, or an id on the Hugging Face Hub
    path: TablePath = ""
    train: TablePath = ""  # table of the training split, in place of path
    validation: TablePath = ""  # table of the validation split
    test: TablePath = ""  # table of the test split
    question: Filled = "question"  # column with the question
    answer: str = "answer"  # column with the answer; "": none
    prompt: str = ""  # template over columns, such as "{question}\n\nChoices: {choices}"; "": the question alone
    id: str = ""  # column with the task id; "": file name and row number
    weight: str = ""  # column with sampling weights for training; "": equal weights
    grading: GradingSetting = None  # grader by name, or a table with its keys; by default "exact" with an answer column
    shares: Shares = Shares()  # fractions of the rows for splits without a table
    subset: str = ""  # configuration name of a data set on the Hugging Face Hub
    parts: Parts = Parts()  # names of the splits in a data set
    # rows to skip instead of raising an error
    leave_out: Annotated[tuple[Literal["duplicates", "unanswered"], ...], Strict(False)] = ()
    limit: CountOrNone = 0  # maximum tasks in each split; 0: all

    @model_validator(mode="after")
    def _fit_together(self) -> Table:
        if bool(self.path) == bool(self.train):
            raise PydanticCustomError("table", "needs path (one table, divided) or train (a table of its own)")
        if self.path and (self.validation or self.test):
            raise PydanticCustomError("table", "path is divided; beside tables of other splits, call it train")
        if self.answer and self.question == self.answer:
            raise PydanticCustomError("table", "question and answer are the same column")
        check_template(self.prompt, self.answer)
        self._check_shuffled()
        if not self.answer and self.grading is not None and self.grading.needs_answer:
            raise PydanticCustomError(
                "table", "grading {name} needs a column with the right answers (answer)", {"name": self.grading.name}
            )
        return self

    def _check_shuffled(self) -> None:
        if not (isinstance(self.grading, Choice) and self.grading.shuffle) or f"{{{CHOICES}}}" in self.prompt:
            return
        columns = [self.grading.choices] if isinstance(self.grading.choices, str) else self.grading.choices
        missing = [column for column in columns if f"{{{column}}}" not in self.prompt]
        if missing:
            raise PydanticCustomError(
                "table", "choices are shuffled that the prompt does not show: put {missing} into it",
                {"missing": ", ".join(f"{{{column}}}" for column in missing)},
            )  # fmt: skip

    @property
    def graded(self) -> bool:
        """True if answers can be graded."""
        return self._grading is not None

    @property
    def _grading(self) -> Grading | None:
        return self.grading or (Exact() if self.answer else None)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        seen: dict[str, str] = {}  # prompt → its row's location
        own: dict[Split, str] = {"validation": self.validation, "test": self.test}
        for split, path in own.items():
            found[split] += [task for _, task in self._tasks_of(path, split, seen)] if path else []
        held_out = {bare(prompt): place for prompt, place in seen.items()}
        shares = [0.0 if own["validation"] else self.shares.validation, 0.0 if own["test"] else self.shares.test]
        for prompt, task in self._tasks_of(self.path or self.train, "train", seen, held_out):
            split = share_of(prompt, *shares)
            if split != "train" or self.odds(task):
                found[split].append(task)
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    def _tasks_of(
        self, path: str, split: Split, seen: dict[str, str], held_out: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[tuple[str, Task]]:
        """Yield a table's tasks with their prompts, whose choices stay in the table's order; no prompt repeats.

        Args:
            seen: locations of earlier prompts; new ones are added.
            held_out: locations of prompts in other splits, by their words without case and spacing.

        Raises:
            ValueError: a prompt repeats, and duplicates are not skipped.
        """
        stem = Path(path).stem if split == "train" else f"{Path(path).stem}/{split}"
        for number, row in enumerate(read_table(path, self.subset, getattr(self.parts, split))):
            prompt = prompt_of(row, self.prompt, self.question, self._choices)
            if not self._answered(row):
                continue
            self._odds(row)
            if place := seen.get(prompt) or held_out.get(bare(prompt)):
                if "duplicates" in self.leave_out:
                    continue
                raise ValueError(
                    f"environment: {row.place} makes the same prompt as {place}; remove one of them, or keep "
                    "the first of each, held-out ones before others (leave_out = ['duplicates'])"
                )
            seen[prompt] = row.place
            yield prompt, Task(row.text(self.id) if self.id else f"{stem}/{number}", *self._shown(row, prompt))

    def _shown(self, row: Row, prompt: str) -> tuple[str, Cells]:
        """Return a row's prompt and cells as shown to the team, with shuffled choices in the task's order."""
        if not (isinstance(self.grading, Choice) and self.grading.shuffle):
            return prompt, row.cells
        answer, cells = self.grading.ordered(row.cell(self.answer), row.cells, prompt)
        cells = {**cells, self.answer: answer}
        return prompt_of(Row(row.place, cells), self.prompt, self.question, self._choices), cells

    @property
    def _choices(self) -> str | Sequence[str]:
        return self.grading.choices if isinstance(self.grading, Choice) else ()

    def _answered(self, row: Row) -> bool:
        """Return true if a row has a correct answer, or the table has no answer column.

        Raises:
            ValueError: the answer is missing and such rows are not skipped, or the grader cannot use it.
        """
        if not self.answer:
            return True
        answer = row.cell(self.answer)
        row.text(self.answer)
        if is_missing(answer):
            if "unanswered" in self.leave_out:
                return False
            raise ValueError(
                f"environment: {row.place}: column {self.answer!r} is empty; fill it in, or leave such rows out "
                "(leave_out = ['unanswered'])"
            )
        try:
            if self._grading is not None:
                self._grading.check(answer, row.cells)
        except ValueError as error:
            name = self._grading.name if self._grading else ""
            raise ValueError(
                f"environment: {row.place}: column {self.answer!r} {error}; put it right, or grade otherwise than by "
                f"{name!r} (grading)"
            ) from error
        return True

    def _odds(self, row: Row) -> float:
        """Return a row's sampling weight.

        Raises:
            ValueError: the weight is not a number from 0 on.
        """
        if not self.weight:
            return 1.0
        numbers = numbers_in(row.text(self.weight))
        if len(numbers) != 1 or not 0 <= numbers[0] <= LARGEST:
            raise ValueError(
                f"environment: {row.place}: column {self.weight!r} holds {row.text(self.weight)[:80]!r}, which is no "
                "weight: 2 is twice as often as 1, and 0 leaves a row out of training"
            )
        return float(numbers[0])

    def odds(self, task: Task) -> float:
        """Return a task's sampling weight for training, from its column of weights.

        Evaluations count each task once.
        """
        return self._odds(Row(task.id, task.data))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split. A task's data is its row.

        Raises:
            ValueError: a table cannot be read, or a row is unusable; the message names the place and a remedy.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  no randomness
        """Return a new session."""
        return SingleTurn(task, lambda text: self.answer_grade(task, text))

    def script(self, skill: float = 1.0) -> Script | None:
        """Return a scripted policy for which every agent knows the row's first correct answer.

        Return None without an answer column.
        """
        if not self.answer:
            return None
        return Answering(lambda task: right_answers(task.data[self.answer])[0], skill)

    def answer_grade(self, task: Task, text: str) -> Grade:
        """Return a text's grade as the answer to a task."""
        if self._grading is None:
            return Grade(0.0, None)
        return self._grading.grade(task.data.get(self.answer), task.data, text)
