"""Any table as an environment: one row a task, one prompt, one graded answer."""

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
    """Which part of the rows goes to splits that have no table of their own."""

    validation: Fraction = 0.1  # of the rows
    test: Fraction = 0.1  # of the rows

    @model_validator(mode="after")
    def _leave_some(self) -> Shares:
        if self.validation + self.test >= 1:
            raise PydanticCustomError("shares", "leave nothing to train on; together they must be below 1")
        return self


class Parts(Settings):
    """What the splits are called in a data set that has several of its own."""

    train: Filled = "train"  # of path, or of train
    validation: Filled = "validation"  # of validation
    test: Filled = "test"  # of test


class Table(EnvironmentPart):
    """One task a row, graded by what a column says is right, or by a function.

    ``path`` is one table, whose rows are divided by the text of their prompts; or ``train`` is one, with ``validation``
    and ``test`` beside it where they have tables of their own. What could not be used is refused with file and line;
    nothing is left out but what ``leave_out`` names.
    """

    one_step: ClassVar[bool] = True

    path: TablePath = ""  # one table, divided by shares; a file, a folder of save_to_disk, or an id on the hub
    train: TablePath = ""  # in place of path: a table of its own
    validation: TablePath = ""  # a table of its own
    test: TablePath = ""  # a table of its own
    question: Filled = "question"  # a column
    answer: str = "answer"  # a column; "": none
    prompt: str = ""  # words around columns: "{question}\n\nChoices: {choices}"
    id: str = ""  # a column; "": file and number
    weight: str = ""  # a column of numbers: how often a row is trained on, beside others; "": all alike
    grading: GradingSetting = None  # its name, or a table with its keys; none: "exact" where there are answers
    shares: Shares = Shares()  # of the rows, for splits without a table
    subset: str = ""  # of a data set of the hub
    parts: Parts = Parts()  # what splits of a data set are called
    # rows that are not refused but left out
    leave_out: Annotated[tuple[Literal["duplicates", "unanswered"], ...], Strict(False)] = ()
    limit: CountOrNone = 0  # tasks of each split; 0: all

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
        """Whether something here says what an answer is worth."""
        return self._grading is not None

    @property
    def _grading(self) -> Grading | None:
        return self.grading or (Exact() if self.answer else None)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        seen: dict[str, str] = {}  # places of prompts
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
        """Tasks of a table, each beside its prompt with choices as the table has them, which no task before has.

        Args:
            seen: where each prompt before stood; those here are added.
            held_out: where each stood that other splits hold, by its words without case and spacing.
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
        """A row's prompt and cells as the team is shown them: choices, where they are shuffled, in the task's order."""
        if not (isinstance(self.grading, Choice) and self.grading.shuffle):
            return prompt, row.cells
        answer, cells = self.grading.ordered(row.cell(self.answer), row.cells, prompt)
        cells = {**cells, self.answer: answer}
        return prompt_of(Row(row.place, cells), self.prompt, self.question, self._choices), cells

    @property
    def _choices(self) -> str | Sequence[str]:
        return self.grading.choices if isinstance(self.grading, Choice) else ()

    def _answered(self, row: Row) -> bool:
        """Whether a row says what is right; it need not, where no column does.

        Raises:
            ValueError: it does not, and is not to be left out; or it cannot be held to that.
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
        """How often a row is trained on, beside others.

        Raises:
            ValueError: its weight is no number from 0 on.
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
        """How often a task is trained on, beside others: what its column of weights says. Evaluations count each task
        once."""
        return self._odds(Row(task.id, task.data))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split. The data of a task is its row.

        Raises:
            ValueError: a table cannot be read, or a row used; the message says which and what to do.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  nothing here is random
        return SingleTurn(task, lambda text: self.answer_grade(task, text))

    def script(self, skill: float = 1.0) -> Script | None:
        """Whoever is asked knows the first of the row's right answers; nobody does where none is said."""
        if not self.answer:
            return None
        return Answering(lambda task: right_answers(task.data[self.answer])[0], skill)

    def answer_grade(self, task: Task, text: str) -> Grade:
        """Return what a text is worth as the answer to a task."""
        if self._grading is None:
            return Grade(0.0, None)
        return self._grading.grade(task.data.get(self.answer), task.data, text)
