"""Table inspection for a first recipe, and generated rows without a table."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from marft.config.settings import did_you_mean
from marft.envs.grading import is_missing
from marft.envs.prompts import prompt_of
from marft.envs.rows import Row, read_table, written
from marft.envs.splits import share_of

QUESTIONS = ("question", "problem", "prompt", "input", "task", "query", "instruction")
ANSWERS = ("answer", "solution", "output", "target", "label", "response", "expected", "result")
NUMBER = r"-?\d+(?:\.\d+)?"
LONGEST_NUMBER = 300  # maximum length of a number in characters; Python's floats end at 309 digits
SUM = re.compile(r"\d+(?: [+-] \d+)+")
# prompt known to the tiny model
SUM_PROMPT = "State the final answer to the following arithmetic problem: {question} ="
# candidate shares of held-out rows; the first with both training and test tasks is used
HELD_OUT = (0.2, 0.3, 0.4, 0.5)
VALIDATION = 0.1
INVENTED = 60
Kind = Literal["number", "text", "list", "none"]  # kind of the answers; text: all other values


@dataclass(frozen=True, slots=True)
class Table:
    """Properties of a user's table."""

    columns: Sequence[str]
    question: str
    answer: str  # column with correct answers; "" for none
    kind: Kind  # kind of the answers
    sums: bool  # True if every question is a sum
    first: Mapping[str, Any]  # a row, with question and answer
    rows: int
    leave_out: Sequence[str]  # problems that the recipe must skip: duplicates, unanswered
    held_out: float  # share of rows held out for tests

    @property
    def prompt(self) -> str:
        """Prompt template; "" for the default."""
        return SUM_PROMPT if self.sums else ""


def columns_of(path: Path) -> list[str]:
    """Return the columns in a table's first row.

    Raises:
        ValueError: the table cannot be read, or is empty.
    """
    return [str(name) for name in next(iter(read_table(_absolute(path), "", "train"))).cells]


def guess(columns: Sequence[str]) -> tuple[str, str]:
    """Return the question and answer columns, guessed by name; ``""`` for the answer with only one column.

    >>> guess(["id", "Problem", "solution"]), guess(["country", "region", "capital"]), guess(["prompt"])
    (('Problem', 'solution'), ('country', 'capital'), ('prompt', ''))
    >>> guess(["label"])
    ('label', '')
    """
    answer = (_called(ANSWERS, columns) or columns[-1]) if len(columns) > 1 else ""
    others = [column for column in columns if column != answer]
    return _called(QUESTIONS, others) or others[0], answer


def look_at(path: Path, question: str = "", answer: str | None = None) -> Table:
    """Read and inspect a complete table.

    Args:
        question: column with the questions; "": guessed by name.
        answer: column with the answers; "": no correct answers; None: guessed by name.

    Raises:
        ValueError: the table cannot be read, or has no such column or no usable row.
    """
    columns = columns_of(path)
    for option, column in (("--question", question), ("--answer", answer)):
        if column and column not in columns:
            raise ValueError(f"{option}: {path} has no column {column!r}{did_you_mean(column, columns)}")
    question = question or guess([column for column in columns if column != answer] or columns)[0]
    answer = guess([question, *(column for column in columns if column != question)])[1] if answer is None else answer
    if question == answer:
        raise ValueError(f"--question and --answer are the same column, {question!r}; name two")
    rows = list(read_table(_absolute(path), "", "train"))
    answered = [row for row in rows if not (answer and is_missing(row.cell(answer)))]
    if not answered:
        raise ValueError(f"{path}: column {answer!r} is empty in every row; name another one (--answer)")
    sums = all(SUM.fullmatch(written(row.cell(question))) for row in answered)
    prompts = [prompt_of(row, SUM_PROMPT if sums else "", question) for row in answered]
    leave_out = ["duplicates"] if len(set(prompts)) < len(prompts) else []
    leave_out += ["unanswered"] if len(answered) < len(rows) else []
    first = {name: answered[0].cell(name) for name in (question, answer) if name}
    kind = _kind(answered, answer)
    return Table(columns, question, answer, kind, sums, first, len(rows), leave_out, _held_out(prompts, path))


def invented() -> str:
    """Return generated sums as CSV, always the same."""
    random, sums = Random(0), dict[str, int]()
    while len(sums) < INVENTED:
        first, second, third = (random.randint(10, 99) for _ in range(3))
        signs = (random.choice((1, -1)), random.choice((1, -1)))
        words = ["+" if sign > 0 else "-" for sign in signs]
        sums[f"{first} {words[0]} {second} {words[1]} {third}"] = first + signs[0] * second + signs[1] * third
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("question", "answer"), *sums.items()])
    return file.getvalue()


def _absolute(path: Path) -> str:
    return os.path.abspath(path.expanduser())  # noqa: PTH100  abspath does not follow symlinks


def _called(names: Sequence[str], columns: Sequence[str]) -> str:
    return next((column for name in names for column in columns if column.casefold() == name), "")


def _kind(rows: Sequence[Row], answer: str) -> Kind:
    if not answer:
        return "none"
    cells = [row.cell(answer) for row in rows]
    if any(not isinstance(cell, str | int | float | list) for cell in cells):
        raise ValueError(
            f"column {answer!r} holds neither texts, nor numbers, nor lists of them; name another (--answer)"
        )
    lists = [isinstance(cell, list) for cell in cells]
    if any(lists) and not all(lists):
        raise ValueError(f"column {answer!r} holds lists and others; make them all lists, or name another (--answer)")
    if any(lists):
        return "list"
    return "number" if all(_is_number(written(cell)) for cell in cells) else "text"


def _is_number(text: str) -> bool:
    """Return True for a number format recognized by the reward function; ``1e5`` and ``nan`` are not."""
    return re.fullmatch(NUMBER, text.strip()) is not None and len(text) < LONGEST_NUMBER


def _held_out(prompts: Sequence[str], path: Path) -> float:
    for share in HELD_OUT:
        splits = {share_of(prompt, VALIDATION, share) for prompt in prompts}
        if {"train", "test"} <= splits:
            return share
    raise ValueError(f"{path} has too few different questions to train on some and hold out others; add rows")
