"""Base class for table-row graders, and shared handling for correct answers."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import ClassVar

from marft.config.settings import Settings
from marft.envs.single_turn import Grade
from marft.envs.table_rows import format_cell
from marft.rewards.text_match import parse_numbers

Cells = Mapping[str, object]
# keys for a correct answer in a table, from SQuAD, verl, TRL and others; the first key present counts
ANSWER_KEYS = (
    "text",
    "ground_truth",
    "answer",
    "final_answer",
    "label",
    "target",
    "solution",
    "value",
    "reward_model",
    "answers",
)
MAX_DEPTH = 8  # maximum depth of nested tables
_EXPONENT = re.compile(r"(?<=\d)[eE](?=[-+]?\d)")
MAX_PLAIN_DIGITS = 40  # maximum digits of a number in positional notation


class AnswerGrader(Settings):
    """Base for all graders. If the answer column holds a list, each item is a correct answer."""

    needs_answer: ClassVar[bool] = True
    name: str  # name of the grader

    def check(self, answer: object, cells: Cells) -> None:
        """Check a row's correct answer.

        Raises:
            ValueError: the answer is not usable; the message continues a sentence that begins with the column's name.
        """

    @abstractmethod
    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade.

        Args:
            answer: the row's value in the answer column.
            cells: the whole row.
            text: the text of the answering agent.
        """


def read_gold_answers(answer: object) -> list[str]:
    """Return the correct answers in a cell, as plain text.

    These are the items of a list or of SQuAD's ``{"text": […]}``, the value under a known key in a table (also as
    JSON), or the cell itself. Empty answers are dropped.

    >>> read_gold_answers(7.0), read_gold_answers(["a", 2, None, ""])
    (['7'], ['a', '2'])
    >>> read_gold_answers({"text": ["a"], "answer_start": [3]})
    ['a']
    >>> read_gold_answers('{"ground_truth": "4", "style": "rule"}')
    ['4']
    """
    answer = extract_label(answer)
    items = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [text for item in items if (text := format_value(extract_label(item))).strip()]


def extract_label(cell: object) -> object:
    """Return the correct answer inside a cell: the value under the first key from ``ANSWER_KEYS``, else the cell.

    The cell may be a table, a table as JSON, or a nested table. If all these values are empty, return None.

    >>> [extract_label(cell) for cell in ({"text": ["a", "b"]}, '{"x": 1}', 3, {"ground_truth": None})]
    [['a', 'b'], '{"x": 1}', 3, None]
    >>> extract_label({"reward_model": {"ground_truth": {"target": ["a"]}}})
    ['a']
    """
    for _ in range(MAX_DEPTH):
        table = _parse_table(cell)
        labels = [] if table is None else [table[name] for name in ANSWER_KEYS if name in table]
        if not labels:
            return cell
        cell = next((label for label in labels if label is not None), None)
    return cell


def _parse_table(cell: object) -> Mapping[str, object] | None:
    """Return the table in a cell, possibly written in JSON, or None."""
    if isinstance(cell, str) and cell.lstrip().startswith("{"):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return None
    return cell if isinstance(cell, Mapping) else None


def format_value(value: object) -> str:
    """Return a value as plain text: integers without a decimal point, dates without a time.

    >>> format_value(7.0), format_value(Decimal("2.50")), format_value(True), format_value(datetime(2024, 5, 1))
    ('7', '2.5', 'true', '2024-05-01')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal) and math.isfinite(value):
        if not value:
            return "0"
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        return f"{exact.normalize():f}" if abs(exact.adjusted()) < MAX_PLAIN_DIGITS else f"{exact.normalize()}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return "" if isinstance(value, Decimal) else format_cell(value)


def same_value(gold: object, text: str) -> bool:
    """Return true if a text expresses a typed value in another notation.

    Examples are a number with other decimals, "yes" for a Boolean, or another format of a time.

    >>> same_value(7.0, "7.00"), same_value(True, "Yes"), same_value(date(2024, 5, 1), "2024-05-01T00:00:00")
    (True, True, True)
    >>> same_value("7.0", "7")
    False
    """
    if isinstance(gold, bool):
        return text.casefold() in (("true", "yes") if gold else ("false", "no"))
    if isinstance(gold, int | float | Decimal):
        numbers = parse_numbers(text)
        has_letters = re.search(r"[^\W\d]", _EXPONENT.sub("", text))
        return len(numbers) == 1 and not has_letters and numbers == parse_numbers(format_value(gold))
    if isinstance(gold, date):
        try:
            parsed = datetime.fromisoformat(text)
        except ValueError:
            return False
        expected = gold if isinstance(gold, datetime) else datetime(gold.year, gold.month, gold.day)
        if expected.tzinfo and parsed.tzinfo:
            return parsed == expected
        return parsed.replace(tzinfo=None) == expected.replace(tzinfo=None)
    if isinstance(gold, time):
        try:
            return time.fromisoformat(text) == gold
        except (ValueError, TypeError):  # one of them has a time zone
            return False
    return False


def is_missing(answer: object) -> bool:
    """Return true if a cell holds no correct answer."""
    return not read_gold_answers(answer)


def make_binary_grade(is_correct: bool) -> Grade:
    """Return a grade of 1 for a correct answer, else 0."""
    return Grade(float(is_correct), is_correct)
