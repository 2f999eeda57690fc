"""Table inspection for a first recipe, and generated rows without a table."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.config.interfaces.environment import Split
from marft.config.settings import did_you_mean
from marft.envs.splits import assign_split_by_share
from marft.envs.table import render_prompt
from marft.envs.table_rows import Row, format_cell, is_missing, read_table

QUESTION_COLUMNS = ("question", "problem", "prompt", "input", "task", "query", "instruction")
ANSWER_COLUMNS = ("answer", "solution", "output", "target", "label", "response", "expected", "result")
NUMBER = r"-?\d+(?:\.\d+)?"
MAX_NUMBER_LENGTH = 300  # maximum length of a number in characters; Python's floats end at 309 digits
SUM_PATTERN = re.compile(r"\d+(?: [+-] \d+)+")
# prompt known to the tiny model
SUM_TASK = "State the final answer to the following arithmetic problem"
SUM_PROMPT = f"{SUM_TASK}: {{question}} ="
# candidate shares of held-out rows; the first with both training and test tasks is used
TEST_SHARES = (0.2, 0.3, 0.4, 0.5)
VALIDATION_SHARE = 0.1
GENERATED_ROWS = 60
AnswerKind = Literal["number", "text", "list", "none"]  # kind of the answers; text: all other values


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Properties of a user's table."""

    columns: Sequence[str]
    question: str
    answer: str  # column with correct answers; "" for none
    kind: AnswerKind  # kind of the answers
    is_sums: bool  # True if every question is a sum
    first: Mapping[str, Any]  # a row, with question and answer
    rows: int
    excluded: Sequence[str]  # problems that the recipe must skip: duplicates, unanswered
    test_share: float  # share of rows held out for tests
    task: str = ""  # the task in one sentence; "" if not stated
    split_sizes: Mapping[Split, int] = field(default_factory=dict)  # number of rows in each split

    @property
    def prompt(self) -> str:
        """Prompt template; "" for the default."""
        return prompt_template(self.task, self.is_sums)


def prompt_template(task: str, is_sums: bool) -> str:
    """Return the prompt template for a task; "" for the question alone.

    >>> prompt_template("Name the capital.", is_sums=False)
    'Name the capital.\\n\\n{question}'

    Args:
        task: the task in one sentence; "" if not stated.
        is_sums: True if every question is a sum.
    """
    if task:
        return task.replace("{", "{{").replace("}", "}}") + "\n\n{question}"
    return SUM_PROMPT if is_sums else ""


def columns_of(path: Path) -> list[str]:
    """Return the columns in a table's first row.

    Raises:
        UserError: the table cannot be read, or is empty.
    """
    return [str(name) for name in next(iter(read_table(_absolute_path(path), "", "train"))).cells]


def guess_columns(columns: Sequence[str]) -> tuple[str, str]:
    """Return the question and answer columns, guessed by name; ``""`` for the answer with only one column.

    >>> guess_columns(["id", "Problem", "solution"]), guess_columns(["country", "region", "capital"])
    (('Problem', 'solution'), ('country', 'capital'))
    >>> guess_columns(["prompt"])
    ('prompt', '')
    >>> guess_columns(["label"])
    ('label', '')
    """
    answer = guess_answer(columns) if len(columns) > 1 else ""
    remaining = [column for column in columns if column != answer]
    return _find_column(QUESTION_COLUMNS, remaining) or remaining[0], answer


def guess_answer(columns: Sequence[str]) -> str:
    """Return the answer column among the columns that are not the question; ``""`` without columns.

    >>> guess_answer(["id", "label"]), guess_answer(["text"]), guess_answer([])
    ('label', 'text', '')
    """
    return _find_column(ANSWER_COLUMNS, columns) or (columns[-1] if columns else "")


def inspect_table(path: Path, question: str = "", answer: str | None = None, task: str = "") -> TableInfo:
    """Read and inspect a complete table.

    Args:
        question: column with the questions; "": guessed by name.
        answer: column with the answers; "": no correct answers; None: guessed by name.
        task: the task in one sentence; "" or the sentence for sums: the prompt that the data needs.

    Raises:
        UserError: the table cannot be read, or has no such column or no usable row.
    """
    columns = columns_of(path)
    for option, column in (("--question", question), ("--answer", answer)):
        if column and column not in columns:
            raise UserError(f"{option}: {path} has no column {column!r}{did_you_mean(column, columns)}")
    question = question or guess_columns([column for column in columns if column != answer] or columns)[0]
    if answer is None:
        answer = guess_answer([column for column in columns if column != question])
    if question == answer:
        raise UserError(f"--question and --answer are the same column, {question!r}; name two")
    rows = list(read_table(_absolute_path(path), "", "train"))
    answered = [row for row in rows if not (answer and is_missing(row.cell(answer)))]
    if not answered:
        raise UserError(f"{path}: column {answer!r} is empty in every row; name another one (--answer)")
    sums = all(SUM_PATTERN.fullmatch(format_cell(row.cell(question))) for row in answered)
    task = "" if sums and task == SUM_TASK else single_line(task.strip())
    prompts = [render_prompt(row, prompt_template(task, sums), question) for row in answered]
    excluded = ["duplicates"] if len(set(prompts)) < len(prompts) else []
    excluded += ["unanswered"] if len(answered) < len(rows) else []
    first = {name: answered[0].cell(name) for name in (question, answer) if name}
    kind, share = _answer_kind(answered, answer), _choose_test_share(prompts, path)
    sizes = Counter(assign_split_by_share(prompt, VALIDATION_SHARE, share) for prompt in set(prompts))
    return TableInfo(columns, question, answer, kind, sums, first, len(rows), excluded, share, task, sizes)


def generate_sums() -> str:
    """Return generated sums as CSV, always the same."""
    random, sums = Random(0), dict[str, int]()
    while len(sums) < GENERATED_ROWS:
        first, second, third = (random.randint(10, 99) for _ in range(3))
        operators = (random.choice((1, -1)), random.choice((1, -1)))
        words = ["+" if sign > 0 else "-" for sign in operators]
        sums[f"{first} {words[0]} {second} {words[1]} {third}"] = first + operators[0] * second + operators[1] * third
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("question", "answer"), *sums.items()])
    return file.getvalue()


def _absolute_path(path: Path) -> str:
    return os.path.abspath(path.expanduser())  # noqa: PTH100  abspath does not follow symlinks


def _find_column(names: Sequence[str], columns: Sequence[str]) -> str:
    return next((column for name in names for column in columns if column.casefold() == name), "")


def _answer_kind(rows: Sequence[Row], answer: str) -> AnswerKind:
    if not answer:
        return "none"
    cells = [row.cell(answer) for row in rows]
    if any(not isinstance(cell, str | int | float | list) for cell in cells):
        raise UserError(
            f"column {answer!r} holds neither texts, nor numbers, nor lists of them; name another (--answer)"
        )
    lists = [isinstance(cell, list) for cell in cells]
    if any(lists) and not all(lists):
        raise UserError(f"column {answer!r} holds lists and others; make them all lists, or name another (--answer)")
    if any(lists):
        return "list"
    return "number" if all(_is_number(format_cell(cell)) for cell in cells) else "text"


def _is_number(text: str) -> bool:
    """Return True for a number format recognized by the reward function; ``1e5`` and ``nan`` are not."""
    return re.fullmatch(NUMBER, text.strip()) is not None and len(text) < MAX_NUMBER_LENGTH


def _choose_test_share(prompts: Sequence[str], path: Path) -> float:
    for share in TEST_SHARES:
        splits = {assign_split_by_share(prompt, VALIDATION_SHARE, share) for prompt in prompts}
        if {"train", "test"} <= splits:
            return share
    raise UserError(f"{path} has too few different questions to train on some and hold out others; add rows")
