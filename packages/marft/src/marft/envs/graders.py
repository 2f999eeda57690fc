"""Graders for table rows: one class per method, with its fields as recipe keys."""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction as Exactly
from functools import cached_property
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal
from unicodedata import normalize

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, Strict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import answer_candidates, extract_answer, find_answer, reference_answer, strip_markup
from marft.agents.environment_calls import RefusedError, validate_flag, validate_number
from marft.agents.loop_threads import await_on_thread
from marft.agents.task_copies import copy_data
from marft.common.error_origin import source_location
from marft.common.errors import UserError
from marft.common.reasoning import strip_reasoning
from marft.config.plugins import import_object
from marft.config.python_objects import ImportPath
from marft.config.settings import (
    Fraction,
    NonEmptyString,
    NonNegative,
    NonNegativeCount,
    Positive,
    Settings,
    did_you_mean,
)
from marft.envs.choices import Choices, extract_choice, match_choice, parse_choices, permute_choices
from marft.envs.graded_sessions import Grade
from marft.envs.table_rows import Cells, extract_label, format_cell, format_value, read_gold_answers, same_value
from marft.rewards.grader import Grader, require_math_verify
from marft.rewards.quantities import Quantity, parse_quantities
from marft.rewards.text_match import (
    contains,
    extract_number,
    is_close,
    normalize_words,
    parse_scaled_numbers,
    similarity,
    split_words,
    token_f1,
)

MAX_LENGTH = 2000  # maximum characters to compare; a longer answer is wrong
REJECTED = re.compile(r"\s*(?:(?:it|this|that)\s+is\s+)?(?:not|never|neither)\b", re.IGNORECASE)
ALTERNATIVE = re.compile(r"\b(?:or|between|either)\b", re.IGNORECASE)  # with two quantities, either may be meant
IgnoredFeature = Literal["accents", "articles", "case", "punctuation"]
CHOICE_NUMBER = re.compile(r"([0-9]{1,3})(?:\.0+)?")  # number of a choice
LETTER, LETTER_CHOICES = re.compile("[A-Z]"), Choices(tuple(ascii_uppercase))


class AnswerGrader(Settings):
    """Base for all graders. If the answer column holds a list, each item is a correct answer."""

    needs_answer: ClassVar[bool] = True
    name: str = Field(description="name of the grader")

    def check_answer(self, answer: object, cells: Cells) -> None:
        """Check a row's correct answer.

        Raises:
            UserError: the answer is not usable; the message continues a sentence that begins with the column's name.
        """

    @abstractmethod
    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade.

        Args:
            answer: the row's value in the answer column.
            cells: the whole row.
            text: the text of the answering agent.
        """


def make_binary_grade(is_correct: bool) -> Grade:
    """Return a grade of 1 for a correct answer, else 0."""
    return Grade(float(is_correct), is_correct)


class FuzzyGrader(AnswerGrader):
    """Grade 1 if the stated answer's similarity to the correct one reaches ``threshold``. Similarity is 1 − (edited
    characters / length of the longer text). With ``order = "free"``, words are sorted first.
    """

    name: Literal["fuzzy"] = Field(default="fuzzy", description="name of the grader")
    threshold: Fraction = Field(default=0.85, description="minimum similarity, from 0 to 1")
    order: Literal["fixed", "free"] = Field(
        default="fixed", description='order of the words; "free": words in any order'
    )
    ignore: Annotated[tuple[IgnoredFeature, ...], Strict(False)] = Field(
        default=("accents", "articles", "case", "punctuation"), description="differences to ignore"
    )

    def check_answer(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for comparable text in every correct answer.

        Raises:
            UserError: ``ignore`` removes all of an answer.
        """
        for gold in read_gold_answers(answer):
            if not self._normalize(gold):
                raise UserError(f"holds {gold[:80]!r}, of which nothing is left to compare (ignore)")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its stated answer."""
        statement = strip_markup(extract_answer(text))
        normalized = self._normalize(statement) if len(statement) <= MAX_LENGTH else ""
        golds = [self._normalize(gold) for gold in read_gold_answers(answer)]
        is_close = bool(normalized) and any(similarity(gold, normalized) >= self.threshold for gold in golds)
        return make_binary_grade(is_close)

    def _normalize(self, text: str) -> str:
        words = split_words(
            text,
            case="case" in self.ignore,
            punctuation="punctuation" in self.ignore,
            articles="articles" in self.ignore,
            accents="accents" in self.ignore,
        )
        return " ".join(sorted(words) if self.order == "free" else words)


class QuantityGrader(AnswerGrader):
    """Grade 1 if the text's quantity equals the correct one, in any unit: ``3 km`` = ``3000 m``, ``5 %`` =
    ``0.05``. The text's quantity is found as for ``numeric``.
    """

    name: Literal["quantity"] = Field(default="quantity", description="name of the grader")
    tolerance: NonNegative = Field(default=0.0, description="maximum distance from the correct quantity, in its unit")
    relative_tolerance: NonNegative = Field(
        default=1e-6, description="maximum distance as a fraction of the correct quantity"
    )
    unit: Literal["required", "assumed"] = Field(
        default="required",
        description='for a number without a unit: "required" grades it 0, "assumed" takes the correct answer\'s unit',
    )

    def check_answer(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for exactly one quantity in every correct answer.

        Raises:
            UserError: an answer is not one quantity.
        """
        for gold in read_gold_answers(answer):
            if len(parse_quantities(reference_answer(gold))) != 1:
                raise UserError(f"holds {gold[:80]!r}, which is not one quantity")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its quantity."""
        marked_answer, statement = find_answer(text), strip_markup(extract_answer(text))
        is_marked = marked_answer is not None or statement != strip_markup(strip_reasoning(text))
        statement = statement.rpartition("=")[2][-MAX_LENGTH:]
        quantities = [] if REJECTED.match(statement) else parse_quantities(statement)
        if not quantities or (len(quantities) > 1 and (marked_answer is not None or ALTERNATIVE.search(statement))):
            return make_binary_grade(False)
        quantity = quantities[0] if is_marked else quantities[-1]
        golds = [gold for right in read_gold_answers(answer) for gold in parse_quantities(reference_answer(right))]
        return make_binary_grade(any(self._is_close(gold, quantity) for gold in golds))

    def _is_close(self, gold: Quantity, quantity: Quantity) -> bool:
        has_no_unit = quantity.unit.factor == 1 and not quantity.unit.dimensions
        value = quantity.value if has_no_unit and self.unit == "assumed" else quantity.in_unit(gold.unit)
        max_error = max(Exactly(self.tolerance), Exactly(self.relative_tolerance) * abs(gold.value))
        return value is not None and abs(value - gold.value) <= max_error


def _parse_numbers(gold: str) -> list[Decimal]:
    return parse_scaled_numbers(reference_answer(gold))


class ExactGrader(AnswerGrader):
    """Grade 1 if the stated answer equals the correct answer, character by character except for spacing."""

    name: Literal["exact"] = Field(default="exact", description="name of the grader")
    ignore_case: bool = Field(default=False, description="ignore case")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its stated answer."""
        statements = {self._normalize(extract_answer(text)), *map(self._normalize, answer_candidates(text))} - {""}
        golds = read_gold_answers(answer)
        label = extract_label(answer)
        values = label if isinstance(label, list) else [label]
        return make_binary_grade(
            any(
                self._normalize(gold) in statements or self._normalize(strip_markup(gold)) in statements
                for gold in golds
            )
            or any(same_value(value, words) for value in values for words in statements)
            or any(LETTER.fullmatch(gold) and extract_choice(text, LETTER_CHOICES) == gold for gold in golds)
        )

    def _normalize(self, text: str) -> str:
        words = " ".join(normalize("NFC", text).split())
        return words.casefold() if self.ignore_case else words


class ContainsGrader(AnswerGrader):
    """Grade 1 if the text contains the correct answer as whole words."""

    name: Literal["contains"] = Field(default="contains", description="name of the grader")
    ignore_case: bool = Field(default=True, description="ignore case")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by a search in the whole text, without reasoning."""
        reply = strip_reasoning(text)
        return make_binary_grade(any(contains(reply, gold, self.ignore_case) for gold in read_gold_answers(answer)))


class NumericGrader(AnswerGrader):
    """Grade 1 if the text's number differs from the correct number by at most ``tolerance``, or ``relative_tolerance``
    times the correct number.

    The text's number is the only number in the last box or tag, or the result of an equation there. Otherwise it is
    the first number after "the answer is", or the result of an equation there. Otherwise it is the last number. Two
    numbers given together ("5 or 6") count as none.
    """

    name: Literal["numeric"] = Field(default="numeric", description="name of the grader")
    tolerance: NonNegative = Field(default=1e-6, description="maximum distance from the correct number")
    relative_tolerance: NonNegative = Field(
        default=0.0, description="maximum distance as a fraction of the correct number"
    )

    def check_answer(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for a number in every correct answer.

        Raises:
            UserError: an answer is not one number.
        """
        for gold in read_gold_answers(answer):
            if len(_parse_numbers(gold)) != 1:
                raise UserError(f"holds {gold[:80]!r}, which is not one number")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its number."""
        number_in_text = extract_number(text)
        if number_in_text is None:
            return make_binary_grade(False)
        golds = [_parse_numbers(gold)[0] for gold in read_gold_answers(answer)]
        return make_binary_grade(
            any(is_close(gold, number_in_text, self.tolerance, self.relative_tolerance) for gold in golds)
        )


class F1Grader(AnswerGrader):
    """Grade by the F1 of the words shared by the stated answer and the correct one; solved from ``threshold`` on."""

    name: Literal["f1"] = Field(default="f1", description="name of the grader")
    threshold: Fraction = Field(default=1.0, description="minimum F1 for a solved task")

    def check_answer(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check that every correct answer contains words.

        Raises:
            UserError: an answer has no words to compare.
        """
        for gold in read_gold_answers(answer):
            if not normalize_words(gold):
                raise UserError(f"holds {gold[:80]!r}, of which no word is left to compare")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return the best F1 over the correct answers."""
        statement = strip_markup(extract_answer(text))
        score = max((token_f1(strip_markup(gold), statement) for gold in read_gold_answers(answer)), default=0.0)
        return Grade(score, score >= self.threshold)


class ChoiceGrader(AnswerGrader):
    """Grade 1 if the text means the correct choice, by its letter or its words.

    The correct choice is given as a letter, as the words of a choice, or as its number, counted from ``first_number``.
    """

    name: Literal["choice"] = Field(default="choice", description="name of the grader")
    choices: str | Annotated[tuple[NonEmptyString, ...], Strict(False)] = Field(
        default="", description='column with a list of choices, or several columns; "": any letter is a choice'
    )
    first_number: Literal[0, 1] = Field(default=0, description="number of the first choice")
    shuffle: bool = Field(
        default=False, description="show each task's choices in a random order; letters keep their places"
    )
    seed: NonNegativeCount = Field(default=0, description="seed of the orders")

    @model_validator(mode="after")
    def _check_shuffle(self) -> ChoiceGrader:
        if self.shuffle and not self.choices:
            raise PydanticCustomError("choices", "only choices of columns can be shuffled; name them (choices)")
        return self

    def shuffle_row(self, answer: object, cells: Cells, key: str) -> tuple[object, Cells]:
        """Return a row's correct answer and cells as shown, with the choices in the task's own order.

        The cell ``shuffled`` lists the original index of each choice.

        Args:
            key: the task's key, which determines the order.
        """
        if not self.shuffle:
            return answer, cells
        choices = self._choices(cells)
        order = permute_choices(choices, f"{self.seed}/{key}")
        texts, permutation = [choices.texts[index] for index in order], {"shuffled": order}
        gold = choices.labels[order.index(choices.labels.index(self._gold_label(answer, cells)))]
        if isinstance(self.choices, str):
            return gold, {**cells, self.choices: {"text": texts, "label": list(choices.labels)}, **permutation}
        return gold, {**cells, **dict(zip(self.choices, texts, strict=True)), **permutation}

    def check_answer(self, answer: object, cells: Cells) -> None:
        """Check for exactly one correct choice in the row, and for empty choices.

        Raises:
            UserError: the row cannot be graded.
        """
        if isinstance(answer, list) and len(answer) != 1:
            raise UserError("holds a list, and one choice is right")
        gold, choices = self._gold_label(answer, cells), self._choices(cells)
        if not gold:
            raise UserError(f"holds {format_cell(answer)[:80]!r}, which is none of the choices")
        texts = {label: text.strip() for label, text in zip(choices.labels, choices.texts, strict=False)}
        empty = [label for label, text in texts.items() if not text]
        same = [label for label, text in texts.items() if text == texts[gold]]
        if empty:
            raise UserError(f"cannot be graded: choice {empty[0]} is empty")
        if len(same) > 1:
            raise UserError(f"cannot be graded: choices {' and '.join(same)} are the same, and one of them is right")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade by its choice."""
        return make_binary_grade(extract_choice(text, self._choices(cells)) == self._gold_label(answer, cells))

    def _choices(self, cells: Cells) -> Choices:
        if not self.choices:
            return LETTER_CHOICES
        columns = [self.choices] if isinstance(self.choices, str) else list(self.choices)
        for column in columns:
            if column not in cells:
                raise UserError(f"cannot be read: there is no column {column!r}{did_you_mean(column, cells)}")
        if not isinstance(self.choices, str):
            return parse_choices([format_cell(cells[column]) for column in columns])
        try:
            return parse_choices(cells[self.choices])
        except ValueError as error:
            raise UserError(f"cannot be read: column {self.choices!r} {error}") from error

    def _gold_label(self, answer: Any, cells: Cells) -> str:
        choices, answer = self._choices(cells), extract_label(answer)
        if isinstance(answer, list) and len(answer) == 1:
            answer = extract_label(answer[0])
        if isinstance(answer, float | Decimal) and answer == answer.__floor__():
            answer = int(answer)
        is_number = isinstance(answer, int) and not isinstance(answer, bool)
        if not is_number:
            label = match_choice(format_value(answer), choices)
            if label or any(text.strip().isdecimal() for text in (*choices.texts, *choices.labels)):
                return label
        match = CHOICE_NUMBER.fullmatch(format_cell(answer))
        index = int(match[1]) - self.first_number if match else -1
        if 0 <= index < len(choices.labels):
            return choices.labels[index]
        return match_choice(format_value(answer), choices)


class MathGrader(AnswerGrader):
    """Grade 1 if the text states the correct answer as mathematics; math-verify decides."""

    name: Literal["math"] = Field(default="math", description="name of the grader")
    timeout_seconds: Positive = Field(default=5.0, description="timeout for grading one answer, in seconds")

    @model_validator(mode="after")
    def _check_package(self) -> MathGrader:
        require_math_verify()
        return self

    @cached_property
    def _grader(self) -> Grader:
        return Grader(self.timeout_seconds)

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:
        """Return a text's grade by mathematical equality."""
        golds = [reference_answer(right) for right in read_gold_answers(answer)]
        question = "\n".join(cell for cell in cells.values() if isinstance(cell, str))
        right = bool(text.strip()) and any(self._grader.matches_gold(gold, text, question=question) for gold in golds)
        return make_binary_grade(right)


class FunctionGrader(AnswerGrader):
    """Grade by a user function: ``call(row, text)`` returns a reward, a Boolean, or a reward and whether the task
    is solved. A reward alone leaves the success undefined.
    """

    needs_answer: ClassVar[bool] = False
    name: Literal["function"] = Field(default="function", description="name of the grader")
    call: ImportPath = Field(description="import path of the function, such as my_package.grades:mine")

    @field_validator("call")
    @classmethod
    def _check_callable(cls, call: str, info: ValidationInfo) -> str:
        function = import_object(call, info.context)
        is_valid = callable(function)
        try:
            inspect.signature(function).bind({}, "")
        except TypeError:
            is_valid = False
        except ValueError:  # a builtin without a signature
            pass
        if not is_valid:
            raise PydanticCustomError(
                "function",
                "{call} is no function of a row and a text; write: def {name}(row, text)",
                {"call": repr(call), "name": call.rpartition(":")[2].strip()},
            )
        return call

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return the grade that the function gives a row and a text.

        Raises:
            TypeError: the function's result is not a grade; the message names the function's file and line.
        """
        function = import_object(self.call)
        result = await_on_thread(function(copy_data(cells), text))
        if isinstance(result, bool | np.bool_):
            return make_binary_grade(bool(result))
        pair = result if isinstance(result, tuple) else (result, None)
        if len(pair) != 2:
            raise TypeError(f"{source_location(function)} gave {len(pair)} values; a reward, and whether it is solved")
        reward, solved = pair
        try:
            return Grade(validate_number(reward, "gave"), None if solved is None else validate_flag(solved, "success"))
        except RefusedError as error:
            raise TypeError(f"{source_location(function)} {error}") from error


GRADERS: Mapping[str, type[AnswerGrader]] = {
    "choice": ChoiceGrader,
    "contains": ContainsGrader,
    "exact": ExactGrader,
    "f1": F1Grader,
    "function": FunctionGrader,
    "fuzzy": FuzzyGrader,
    "math": MathGrader,
    "numeric": NumericGrader,
    "quantity": QuantityGrader,
}


def _parse_grader(value: object, info: ValidationInfo) -> object:
    """Return a grader from its name, the import path of a function, or a table."""
    if value is None or isinstance(value, AnswerGrader):
        return value
    table = dict(value) if isinstance(value, dict) else {"name": value}
    if isinstance(value, str) and ":" in value:
        table = {"name": "function", "call": value}
    name = table.get("name")
    if not isinstance(name, str) or name not in GRADERS:
        hint = did_you_mean(name, GRADERS) if isinstance(name, str) else f"; known: {', '.join(GRADERS)}"
        raise PydanticCustomError(
            "grading",
            "no grading is called {name}{hint}; or the import path of a function, my_package.module:name",
            {"name": repr(name)[:80], "hint": hint},
        )
    return GRADERS[name].model_validate(table, context=info.context)


GraderSetting = Annotated[SerializeAsAny[AnswerGrader] | None, BeforeValidator(_parse_grader)]
