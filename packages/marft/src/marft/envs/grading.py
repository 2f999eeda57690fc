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
from marft.envs.rows import written
from marft.envs.single_turn import Grade
from marft.rewards.comparing import numbers_in

Cells = Mapping[str, object]
# keys for a correct answer in a table, from SQuAD, verl, TRL and others; the first key present counts
LABELS = (
    "text", "ground_truth", "answer", "final_answer", "label", "target", "solution", "value", "reward_model", "answers"
)  # fmt: skip
DEEPEST = 8  # maximum depth of nested tables
_EXPONENT = re.compile(r"(?<=\d)[eE](?=[-+]?\d)")
LONGEST_PLAIN = 40  # maximum digits of a number in positional notation


class Grading(Settings):
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


def right_answers(answer: object) -> list[str]:
    """Return the correct answers in a cell, as plain text.

    These are the items of a list or of SQuAD's ``{"text": […]}``, the value under a known key in a table (also as
    JSON), or the cell itself. Empty answers are dropped.

    >>> right_answers(7.0), right_answers(["a", 2, None, ""]), right_answers({"text": ["a"], "answer_start": [3]})
    (['7'], ['a', '2'], ['a'])
    >>> right_answers('{"ground_truth": "4", "style": "rule"}')
    ['4']
    """
    answer = label_of(answer)
    given = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [right for one in given if (right := said_plainly(label_of(one))).strip()]


def label_of(cell: object) -> object:
    """Return the correct answer inside a cell: the value under the first key from ``LABELS``, else the cell.

    The cell may be a table, a table as JSON, or a nested table. If all these values are empty, return None.

    >>> label_of({"text": ["a", "b"]}), label_of('{"x": 1}'), label_of(3), label_of({"ground_truth": None})
    (['a', 'b'], '{"x": 1}', 3, None)
    >>> label_of({"reward_model": {"ground_truth": {"target": ["a"]}}})
    ['a']
    """
    for _ in range(DEEPEST):
        table = _table_in(cell)
        known = [] if table is None else [table[name] for name in LABELS if name in table]
        if not known:
            return cell
        cell = next((label for label in known if label is not None), None)
    return cell


def _table_in(cell: object) -> Mapping[str, object] | None:
    """Return the table in a cell, possibly written in JSON, or None."""
    if isinstance(cell, str) and cell.lstrip().startswith("{"):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return None
    return cell if isinstance(cell, Mapping) else None


def said_plainly(value: object) -> str:
    """Return a value as plain text: integers without a decimal point, dates without a time.

    >>> said_plainly(7.0), said_plainly(Decimal("2.50")), said_plainly(True), said_plainly(datetime(2024, 5, 1))
    ('7', '2.5', 'true', '2024-05-01')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal) and math.isfinite(value):
        if not value:
            return "0"
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        return f"{exact.normalize():f}" if abs(exact.adjusted()) < LONGEST_PLAIN else f"{exact.normalize()}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return "" if isinstance(value, Decimal) else written(value)


def same_value(right: object, given: str) -> bool:
    """Return true if a text expresses a typed value in another notation.

    Examples are a number with other decimals, "yes" for a Boolean, or another format of a time.

    >>> same_value(7.0, "7.00"), same_value(True, "Yes"), same_value(date(2024, 5, 1), "2024-05-01T00:00:00")
    (True, True, True)
    >>> same_value("7.0", "7")
    False
    """
    if isinstance(right, bool):
        return given.casefold() in (("true", "yes") if right else ("false", "no"))
    if isinstance(right, int | float | Decimal):
        numbers = numbers_in(given)
        worded = re.search(r"[^\W\d]", _EXPONENT.sub("", given))
        return len(numbers) == 1 and not worded and numbers == numbers_in(said_plainly(right))
    if isinstance(right, date):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            return False
        whole = right if isinstance(right, datetime) else datetime(right.year, right.month, right.day)
        if whole.tzinfo and moment.tzinfo:
            return moment == whole
        return moment.replace(tzinfo=None) == whole.replace(tzinfo=None)
    if isinstance(right, time):
        try:
            return time.fromisoformat(given) == right
        except (ValueError, TypeError):  # one of them has a time zone
            return False
    return False


def is_missing(answer: object) -> bool:
    """Return true if a cell holds no correct answer."""
    return not right_answers(answer)


def all_or_nothing(right: bool) -> Grade:
    """Return a grade of 1 for a correct answer, else 0."""
    return Grade(float(right), right)
