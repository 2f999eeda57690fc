"""Table environment: a task per row, with a prompt and a graded answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import MAX_COUNT, Fraction, NonEmptyString, NonNegativeCount, Settings
from marft.envs.choices import format_choices
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.envs.graders import AnswerGrader, ChoiceGrader, ExactGrader, GraderSetting
from marft.envs.scripted_policy import OraclePolicy, ScriptedPolicy
from marft.envs.splits import assign_split_by_share, normalize_question
from marft.envs.table_rows import Cells, Row, TablePath, is_missing, read_gold_answers, read_table
from marft.rewards.text_match import parse_numbers

QUESTION_FIELD, CHOICES_FIELD = "question", "choices"  # template fields, independent of the column names


def check_template(template: str, answer: str) -> str:
    """Check and return a prompt template like ``"{question}\\n\\nChoices: {choices}"``.

    Raises:
        PydanticCustomError: braces do not match, or the template would reveal the correct answer.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise PydanticCustomError(
            "template", "prompt: {error}; a brace of its own is written twice", {"error": str(error)}
        ) from error
    if any(name == "" or form or conversion for _, name, form, conversion in parts):
        raise PydanticCustomError("template", "prompt: a column is named alone, such as {{question}}")
    if answer and any(name == answer for _, name, _, _ in parts):
        raise PydanticCustomError("template", "prompt: shows the right answer, {name}", {"name": repr(answer)})
    return template


def render_prompt(row: Row, template: str, question: str, choices: str | Sequence[str] = ()) -> str:
    """Return the prompt for a row.

    Args:
        template: checked by :func:`check_template`; "" uses the question alone.
        question: name of the question column.
        choices: column of choices, or several columns with one choice each; shown as lines with letters.

    Raises:
        UserError: a column is missing, or the question is not text.
    """
    parts = []
    for words, name, _, _ in Formatter().parse(template or f"{{{QUESTION_FIELD}}}"):
        parts.append(words)
        if name == QUESTION_FIELD:
            parts.append(_read_question(row, question))
        elif name is not None:
            parts.append(_render_field(row, name, choices))
    prompt = "".join(parts)
    if not prompt.strip():
        raise UserError(f"environment: {row.location} makes an empty prompt; fill it in, or remove the row")
    return prompt


def _render_field(row: Row, name: str, choices: str | Sequence[str]) -> str:
    """Return the text for a template field: a column, or the choices."""
    if name == choices:
        return row.check_text(format_choices(row.cell(name)), name)
    if name == CHOICES_FIELD and choices and name not in row.cells:
        cell = row.cell(choices) if isinstance(choices, str) else [row.text(column) for column in choices]
        return row.check_text(format_choices(cell), name)
    return row.text(name)


def _read_question(row: Row, column: str) -> str:
    cell: object = row.cell(column)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | None):
        raise UserError(
            f"environment: {row.location}: column {column!r} is a {type(cell).__name__}, not text or a number; name "
            "another column (question), or the parts of the prompt (prompt)"
        )
    text = row.text(column)
    if not text.strip():
        raise UserError(f"environment: {row.location}: column {column!r} is empty; fill it in, or remove the row")
    return text


class SplitFractions(Settings):
    """Fractions for splits without a separate table."""

    validation: Fraction = Field(default=0.1, description="fraction of the rows")
    test: Fraction = Field(default=0.1, description="fraction of the rows")

    @model_validator(mode="after")
    def _check_total(self) -> SplitFractions:
        if self.validation + self.test >= 1:
            raise PydanticCustomError("split_fractions", "leave nothing to train on; together they must be below 1")
        return self


class SplitNames(Settings):
    """Split names in a data set with several splits of its own."""

    train: NonEmptyString = Field(default="train", description="split to read from path, or from train")
    validation: NonEmptyString = Field(default="validation", description="split to read from validation")
    test: NonEmptyString = Field(default="test", description="split to read from test")


class Table(Environment):
    """One task per row, graded by an answer column or by a function.

    ``path`` is one table, whose rows are divided by the text of their prompts. Alternatively, ``train`` is one,
    with ``validation`` and ``test`` beside it if these have tables of their own. Unusable rows raise an error with
    file and line; only rows that ``skip`` names are skipped.
    """

    one_step: ClassVar[bool] = True

    path: TablePath = Field(
        default="",
        description=(
            "one table, divided by split_fractions; a file, a folder of save_to_disk, or an id on the Hugging Face Hub"
        ),
    )
    train: TablePath = Field(default="", description="table of the training split, in place of path")
    validation: TablePath = Field(default="", description="table of the validation split")
    test: TablePath = Field(default="", description="table of the test split")
    question: NonEmptyString = Field(default="question", description="column with the question")
    answer: str = Field(default="answer", description='column with the answer; "": none')
    prompt: str = Field(
        default="",
        description='template over columns, such as "{question}\\n\\nChoices: {choices}"; "": the question alone',
    )
    id: str = Field(default="", description='column with the task id; "": file name and row number')
    weight: str = Field(default="", description='column with sampling weights for training; "": equal weights')
    grading: GraderSetting = Field(
        default=None, description='grader by name, or a table with its keys; by default "exact" with an answer column'
    )
    split_fractions: SplitFractions = Field(
        default=SplitFractions(), description="fractions of the rows for splits without a table"
    )
    subset: str = Field(default="", description="configuration name of a data set on the Hugging Face Hub")
    split_names: SplitNames = Field(default=SplitNames(), description="names of the splits in a data set")
    skip: Annotated[tuple[Literal["duplicates", "unanswered"], ...], Strict(False)] = Field(
        default=(), description="rows to skip instead of raising an error"
    )
    limit: NonNegativeCount = Field(default=0, description="maximum tasks in each split; 0: no limit")

    @model_validator(mode="after")
    def _check_columns(self) -> Table:
        if bool(self.path) == bool(self.train):
            raise PydanticCustomError("table", "needs path (one table, divided) or train (a table of its own)")
        if self.path and (self.validation or self.test):
            raise PydanticCustomError("table", "path is divided; beside tables of other splits, call it train")
        if self.answer and self.question == self.answer:
            raise PydanticCustomError("table", "question and answer are the same column")
        check_template(self.prompt, self.answer)
        self._check_shuffled_choices()
        if not self.answer and self.grading is not None and self.grading.needs_answer:
            raise PydanticCustomError(
                "table", "grading {name} needs a column with the right answers (answer)", {"name": self.grading.name}
            )
        return self

    def _check_shuffled_choices(self) -> None:
        if not isinstance(self.grading, ChoiceGrader) or not self.grading.shuffle:
            return
        if f"{{{CHOICES_FIELD}}}" in self.prompt:
            return
        columns = [self.grading.choices] if isinstance(self.grading.choices, str) else self.grading.choices
        missing = [column for column in columns if f"{{{column}}}" not in self.prompt]
        if missing:
            raise PydanticCustomError(
                "table",
                "choices are shuffled that the prompt does not show: put {missing} into it",
                {"missing": ", ".join(f"{{{column}}}" for column in missing)},
            )

    @property
    def grades_answers(self) -> bool:
        """True if answers can be graded."""
        return self._grader is not None

    @property
    def _grader(self) -> AnswerGrader | None:
        return self.grading or (ExactGrader() if self.answer else None)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        seen: dict[str, str] = {}  # prompt → its row's location
        split_paths: dict[Split, str] = {"validation": self.validation, "test": self.test}
        for split, path in split_paths.items():
            tasks_by_split[split] += [task for _, task in self._read_tasks(path, split, seen)] if path else []
        held_out_prompts = {normalize_question(prompt): location for prompt, location in seen.items()}
        fractions = self.split_fractions
        shares = [0.0 if self.validation else fractions.validation, 0.0 if self.test else fractions.test]
        for prompt, task in self._read_tasks(self.path or self.train, "train", seen, held_out_prompts):
            split = assign_split_by_share(prompt, *shares)
            if split != "train" or self.sampling_weight(task):
                tasks_by_split[split].append(task)
        return {split: tasks[: self.limit or None] for split, tasks in tasks_by_split.items()}

    def _read_tasks(
        self, path: str, split: Split, seen: dict[str, str], held_out_prompts: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[tuple[str, Task]]:
        """Yield a table's tasks with their prompts, whose choices stay in the table's order; no prompt repeats.

        Args:
            seen: locations of earlier prompts; new ones are added.
            held_out_prompts: locations of prompts in other splits, by their words without case and spacing.

        Raises:
            UserError: a prompt repeats, and duplicates are not skipped.
        """
        stem = Path(path).stem if split == "train" else f"{Path(path).stem}/{split}"
        for number, row in enumerate(read_table(path, self.subset, getattr(self.split_names, split))):
            prompt = render_prompt(row, self.prompt, self.question, self._choice_columns)
            if not self._has_answer(row):
                continue
            self._row_weight(row)
            if location := seen.get(prompt) or held_out_prompts.get(normalize_question(prompt)):
                if "duplicates" in self.skip:
                    continue
                raise UserError(
                    f"environment: {row.location} makes the same prompt as {location}; remove one of them, or keep "
                    "the first of each, held-out ones before others (skip = ['duplicates'])"
                )
            seen[prompt] = row.location
            yield prompt, Task(row.text(self.id) if self.id else f"{stem}/{number}", *self._render_row(row, prompt))

    def _render_row(self, row: Row, prompt: str) -> tuple[str, Cells]:
        """Return a row's prompt and cells as shown to the team, with shuffled choices in the task's order."""
        if not (isinstance(self.grading, ChoiceGrader) and self.grading.shuffle):
            return prompt, row.cells
        answer, cells = self.grading.shuffle_row(row.cell(self.answer), row.cells, prompt)
        cells = {**cells, self.answer: answer}
        return render_prompt(Row(row.location, cells), self.prompt, self.question, self._choice_columns), cells

    @property
    def _choice_columns(self) -> str | Sequence[str]:
        return self.grading.choices if isinstance(self.grading, ChoiceGrader) else ()

    def _has_answer(self, row: Row) -> bool:
        """Return true if a row has a correct answer, or the table has no answer column.

        Raises:
            UserError: the answer is missing and such rows are not skipped, or the grader cannot use it.
        """
        if not self.answer:
            return True
        answer = row.cell(self.answer)
        row.text(self.answer)
        if is_missing(answer):
            if "unanswered" in self.skip:
                return False
            raise UserError(
                f"environment: {row.location}: column {self.answer!r} is empty; fill it in, or leave such rows out "
                "(skip = ['unanswered'])"
            )
        try:
            if self._grader is not None:
                self._grader.check_answer(answer, row.cells)
        except ValueError as error:
            name = self._grader.name if self._grader else ""
            raise UserError(
                f"environment: {row.location}: column {self.answer!r} {error}; put it right, or grade otherwise than "
                f"by {name!r} (grading)"
            ) from error
        return True

    def _row_weight(self, row: Row) -> float:
        """Return a row's sampling weight.

        Raises:
            UserError: the weight is not a number from 0 on.
        """
        if not self.weight:
            return 1.0
        numbers = parse_numbers(row.text(self.weight))
        if len(numbers) != 1 or not 0 <= numbers[0] <= MAX_COUNT:
            raise UserError(
                f"environment: {row.location}: column {self.weight!r} holds {row.text(self.weight)[:80]!r}, which is "
                "no weight: 2 is twice as often as 1, and 0 leaves a row out of training"
            )
        return float(numbers[0])

    def sampling_weight(self, task: Task) -> float:
        """Return a task's sampling weight for training, from its column of weights.

        Evaluations count each task once.
        """
        return self._row_weight(Row(task.id, task.data))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split. A task's data is its row.

        Raises:
            UserError: a table cannot be read, or a row is unusable; the message names the place and a remedy.
        """
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  no randomness
        """Return a new session."""
        return SingleTurn(task, lambda text: self.answer_grade(task, text))

    def script(self, skill: float = 1.0) -> ScriptedPolicy | None:
        """Return a scripted policy for which every agent knows the row's first correct answer.

        Return None without an answer column.
        """
        if not self.answer:
            return None
        return OraclePolicy(lambda task: read_gold_answers(task.data[self.answer])[0], skill)

    def answer_grade(self, task: Task, text: str) -> Grade:
        """Return a text's grade as the answer to a task."""
        if self._grader is None:
            return Grade(0.0, None)
        return self._grader.grade(task.data.get(self.answer), task.data, text)
