"""Graders for table rows: one class per method, with its fields as recipe keys."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal
from unicodedata import normalize

import numpy as np
from pydantic import BeforeValidator, SerializeAsAny, Strict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import answer_in, stated_answer, undecorated, wordings
from marft.agents.loop_threads import awaited_elsewhere
from marft.agents.reading import RefusedError, flag, number
from marft.agents.tasks import own_data
from marft.common.faults import defined
from marft.common.thoughts import outside_thoughts
from marft.config.given import ImportPath
from marft.config.plugins import import_path
from marft.config.settings import CountOrNone, Filled, Fraction, NotNegative, Positive, did_you_mean
from marft.envs.choices import Choices, choices_in, chosen, labelled, shuffled
from marft.envs.grading import Cells, Grading, all_or_nothing, label_of, right_answers, said_plainly, same_value
from marft.envs.near_gradings import Fuzzy, Quantities
from marft.envs.rows import written
from marft.envs.single_turn import Grade
from marft.rewards.comparing import close, contains, number_stated, scaled_numbers, token_f1, words_of
from marft.rewards.grader import Grader, require_math_verify

NUMBER = re.compile(r"([0-9]{1,3})(?:\.0+)?")  # number of a choice
LETTER, LETTERS = re.compile("[A-Z]"), Choices(tuple(ascii_uppercase))


def _numbers_of(right: str) -> list[Decimal]:
    return scaled_numbers(answer_in(right))


class Exact(Grading):
    """Grade 1 if the stated answer equals the correct answer, character by character except for spacing."""

    name: Literal["exact"] = "exact"  # name of the grader
    ignore_case: bool = False  # ignore the difference between capitals and small letters

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its stated answer."""
        given = {self._plain(stated_answer(text)), *map(self._plain, wordings(text))} - {""}
        rights = right_answers(answer)
        typed = label_of(answer)
        values = typed if isinstance(typed, list) else [typed]
        return all_or_nothing(
            any(self._plain(right) in given or self._plain(undecorated(right)) in given for right in rights)
            or any(same_value(value, words) for value in values for words in given)
            or any(LETTER.fullmatch(right) and chosen(text, LETTERS) == right for right in rights)
        )

    def _plain(self, text: str) -> str:
        words = " ".join(normalize("NFC", text).split())
        return words.casefold() if self.ignore_case else words


class Contains(Grading):
    """Grade 1 if the text contains the correct answer as whole words."""

    name: Literal["contains"] = "contains"  # name of the grader
    ignore_case: bool = True  # ignore the difference between capitals and small letters

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by a search in the whole text, without reasoning."""
        said = outside_thoughts(text)
        return all_or_nothing(any(contains(said, right, self.ignore_case) for right in right_answers(answer)))


class Numeric(Grading):
    """Grade 1 if the text's number is within ``tolerance`` of the correct one, or within ``relative`` times the
    correct one.

    The text's number is the only number in the last box or tag, or the result of an equation there. Otherwise it is
    the first number after "the answer is", or the result of an equation there. Otherwise it is the last number. Two
    numbers given together ("5 or 6") count as none.
    """

    name: Literal["numeric"] = "numeric"  # name of the grader
    tolerance: NotNegative = 1e-6  # maximum distance from the correct number
    relative: NotNegative = 0.0  # maximum distance as a fraction of the correct number

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for a number in every correct answer.

        Raises:
            ValueError: an answer is not one number.
        """
        for right in right_answers(answer):
            if len(_numbers_of(right)) != 1:
                raise ValueError(f"holds {right[:80]!r}, which is not one number")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its number."""
        given = number_stated(text)
        if given is None:
            return all_or_nothing(False)
        rights = [_numbers_of(right)[0] for right in right_answers(answer)]
        return all_or_nothing(any(close(right, given, self.tolerance, self.relative) for right in rights))


class F1(Grading):
    """Grade by the F1 of the words shared by the stated answer and the correct one; solved from ``threshold`` on."""

    name: Literal["f1"] = "f1"  # name of the grader
    threshold: Fraction = 1.0  # minimum F1 for a solved task

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check that every correct answer contains words.

        Raises:
            ValueError: an answer has no words to compare.
        """
        for right in right_answers(answer):
            if not words_of(right):
                raise ValueError(f"holds {right[:80]!r}, of which no word is left to compare")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return the best F1 over the correct answers."""
        given = undecorated(stated_answer(text))
        score = max((token_f1(undecorated(right), given) for right in right_answers(answer)), default=0.0)
        return Grade(score, score >= self.threshold)


class Choice(Grading):
    """Grade 1 if the text means the correct choice, by its letter or its words.

    The correct choice is given as a letter, as the words of a choice, or as its number, counted from ``first``.
    """

    name: Literal["choice"] = "choice"  # name of the grader
    # column with a list of choices, or several columns; "": any letter is a choice
    choices: str | Annotated[tuple[Filled, ...], Strict(False)] = ""
    first: Literal[0, 1] = 0  # number of the first choice
    shuffle: bool = False  # show each task's choices in an order of its own; letters keep their places
    seed: CountOrNone = 0  # seed of the orders

    @model_validator(mode="after")
    def _has_what_it_shuffles(self) -> Choice:
        if self.shuffle and not self.choices:
            raise PydanticCustomError("choices", "only choices of columns can be shuffled; name them (choices)")
        return self

    def ordered(self, answer: object, cells: Cells, key: str) -> tuple[object, Cells]:
        """Return a row's correct answer and cells as shown, with the choices in the task's own order.

        The cell ``shuffled`` lists the original index of each choice.

        Args:
            key: the task's key, which determines the order.
        """
        if not self.shuffle:
            return answer, cells
        choices = self._choices(cells)
        order = shuffled(choices, f"{self.seed}/{key}")
        texts, places = [choices.texts[place] for place in order], {"shuffled": order}
        right = choices.labels[order.index(choices.labels.index(self._right(answer, cells)))]
        if isinstance(self.choices, str):
            return right, {**cells, self.choices: {"text": texts, "label": list(choices.labels)}, **places}
        return right, {**cells, **dict(zip(self.choices, texts, strict=True)), **places}

    def check(self, answer: object, cells: Cells) -> None:
        """Check for exactly one correct choice in the row, and for empty choices.

        Raises:
            ValueError: the row cannot be graded.
        """
        if isinstance(answer, list) and len(answer) != 1:
            raise ValueError("holds a list, and one choice is right")
        right, choices = self._right(answer, cells), self._choices(cells)
        if not right:
            raise ValueError(f"holds {written(answer)[:80]!r}, which is none of the choices")
        texts = {label: text.strip() for label, text in zip(choices.labels, choices.texts, strict=False)}
        empty = [label for label, text in texts.items() if not text]
        same = [label for label, text in texts.items() if text == texts[right]]
        if empty:
            raise ValueError(f"cannot be graded: choice {empty[0]} is empty")
        if len(same) > 1:
            raise ValueError(f"cannot be graded: choices {' and '.join(same)} are the same, and one of them is right")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade by its choice."""
        return all_or_nothing(chosen(text, self._choices(cells)) == self._right(answer, cells))

    def _choices(self, cells: Cells) -> Choices:
        if not self.choices:
            return LETTERS
        columns = [self.choices] if isinstance(self.choices, str) else list(self.choices)
        for column in columns:
            if column not in cells:
                raise ValueError(f"cannot be read: there is no column {column!r}{did_you_mean(column, cells)}")
        if not isinstance(self.choices, str):
            return choices_in([written(cells[column]) for column in columns])
        try:
            return choices_in(cells[self.choices])
        except ValueError as error:
            raise ValueError(f"cannot be read: column {self.choices!r} {error}") from error

    def _right(self, answer: Any, cells: Cells) -> str:
        choices, answer = self._choices(cells), label_of(answer)
        if isinstance(answer, list) and len(answer) == 1:
            answer = label_of(answer[0])
        if isinstance(answer, float | Decimal) and answer == answer.__floor__():
            answer = int(answer)
        is_number = isinstance(answer, int) and not isinstance(answer, bool)
        if not is_number:
            meant = labelled(said_plainly(answer), choices)
            if meant or any(text.strip().isdecimal() for text in (*choices.texts, *choices.labels)):
                return meant
        place = NUMBER.fullmatch(written(answer))
        index = int(place[1]) - self.first if place else -1
        return choices.labels[index] if 0 <= index < len(choices.labels) else labelled(said_plainly(answer), choices)


class MathGrading(Grading):
    """Grade 1 if the text states the correct answer as mathematics; math-verify decides."""

    name: Literal["math"] = "math"  # name of the grader
    timeout_seconds: Positive = 5.0  # timeout for grading one answer, in seconds

    @model_validator(mode="after")
    def _check_package(self) -> MathGrading:
        require_math_verify()
        return self

    @cached_property
    def _grader(self) -> Grader:
        return Grader(self.timeout_seconds)

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade by mathematical equality."""
        golds = [answer_in(right) for right in right_answers(answer)]
        question = "\n".join(cell for cell in cells.values() if isinstance(cell, str))
        right = bool(text.strip()) and any(self._grader.equal(gold, text, question=question) for gold in golds)
        return all_or_nothing(right)


class ByFunction(Grading):
    """Grade by a user function: ``call(row, text)`` returns a reward, a Boolean, or a reward and whether the task
    is solved. A reward alone leaves the success undefined.
    """

    needs_answer: ClassVar[bool] = False
    name: Literal["function"] = "function"  # name of the grader
    call: ImportPath  # import path of the function, such as my_package.grades:mine

    @field_validator("call")
    @classmethod
    def _can_be_called(cls, call: str, info: ValidationInfo) -> str:
        function = import_path(call, info.context)
        fits = callable(function)
        try:
            inspect.signature(function).bind({}, "")
        except TypeError:
            fits = False
        except ValueError:  # a builtin without a signature
            pass
        if not fits:
            raise PydanticCustomError(
                "function", "{call} is no function of a row and a text; write: def {name}(row, text)",
                {"call": repr(call), "name": call.rpartition(":")[2].strip()},
            )  # fmt: skip
        return call

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return the grade that the function gives a row and a text.

        Raises:
            TypeError: the function's result is not a grade; the message names the function's file and line.
        """
        function = import_path(self.call)
        said = awaited_elsewhere(function(own_data(cells), text))
        if isinstance(said, bool | np.bool_):
            return all_or_nothing(bool(said))
        both = said if isinstance(said, tuple) else (said, None)
        if len(both) != 2:
            raise TypeError(f"{defined(function)} gave {len(both)} values; a reward, and whether it is solved")
        reward, solved = both
        try:
            return Grade(number(reward, "gave"), None if solved is None else flag(solved, "success"))
        except RefusedError as error:
            raise TypeError(f"{defined(function)} {error}") from error


GRADINGS: Mapping[str, type[Grading]] = {
    "choice": Choice,
    "contains": Contains,
    "exact": Exact,
    "f1": F1,
    "function": ByFunction,
    "fuzzy": Fuzzy,
    "math": MathGrading,
    "numeric": Numeric,
    "quantity": Quantities,
}


def _grading(given: object, info: ValidationInfo) -> object:
    """Return a grader from its name, the import path of a function, or a table."""
    if given is None or isinstance(given, Grading):
        return given
    table = dict(given) if isinstance(given, dict) else {"name": given}
    if isinstance(given, str) and ":" in given:
        table = {"name": "function", "call": given}
    name = table.get("name")
    if not isinstance(name, str) or name not in GRADINGS:
        hint = did_you_mean(name, GRADINGS) if isinstance(name, str) else f"; known: {', '.join(GRADINGS)}"
        raise PydanticCustomError(
            "grading", "no grading is called {name}{hint}; or the import path of a function, my_package.module:name",
            {"name": repr(name)[:80], "hint": hint},
        )  # fmt: skip
    return GRADINGS[name].model_validate(table, context=info.context)


GradingSetting = Annotated[SerializeAsAny[Grading] | None, BeforeValidator(_grading)]
