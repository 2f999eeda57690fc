"""What every way of grading the rows of a table is: its base, and what its answers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from marft.config.settings import Settings
from marft.envs.rows import written
from marft.envs.single_turn import Grade

Cells = Mapping[str, object]


class Grading(Settings):
    """Base of all gradings. A list in the column of answers holds several right ones: any of them will do."""

    needs_answer: ClassVar[bool] = True
    name: str  # which grading it is

    def check(self, answer: object, cells: Cells) -> None:
        """See that answers can be held to a row's right one.

        Raises:
            ValueError: why not, to go on from the name of its column.
        """

    @abstractmethod
    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """What a text is worth.

        Args:
            answer: of the row's column of answers.
            cells: the whole row.
        """


def right_answers(answer: object) -> list[str]:
    """The right answers that a cell holds: those of a list, or of SQuAD's ``{"text": […]}``, else itself.

    >>> right_answers(7), right_answers(["a", 2]), right_answers({"text": ["a"], "answer_start": [3]})
    (['7'], ['a', '2'], ['a'])
    """
    if isinstance(answer, Mapping) and isinstance(answer.get("text"), list):
        answer = answer["text"]
    return [written(one) for one in (answer if isinstance(answer, list) else [answer])]


def is_missing(answer: object) -> bool:
    """Whether a cell holds no right answer."""
    return not any(right.strip() for right in right_answers(answer))


def all_or_nothing(right: bool) -> Grade:
    """1 for a right answer, else 0."""
    return Grade(float(right), right)
