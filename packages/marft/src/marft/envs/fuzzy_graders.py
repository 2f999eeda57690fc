"""Graders for answers close to the correct one: similar spelling, or an equal quantity in another unit."""

from __future__ import annotations

import re
from fractions import Fraction as Exactly
from typing import Annotated, Literal

from pydantic import Strict

from marft.agents.answers import extract_answer, find_answer, reference_answer, strip_markup
from marft.common.reasoning import strip_reasoning
from marft.config.settings import Fraction, NonNegative
from marft.envs.grader_base import AnswerGrader, Cells, make_binary_grade, read_gold_answers
from marft.envs.single_turn import Grade
from marft.rewards.quantities import Quantity, parse_quantities
from marft.rewards.text_match import similarity, split_words

MAX_LENGTH = 2000  # maximum characters to compare; a longer answer is wrong
REJECTED = re.compile(r"\s*(?:(?:it|this|that)\s+is\s+)?(?:not|never|neither)\b", re.IGNORECASE)
ALTERNATIVE = re.compile(r"\b(?:or|between|either)\b", re.IGNORECASE)  # with two quantities, either may be meant
IgnoredFeature = Literal["accents", "articles", "case", "punctuation"]


class FuzzyGrader(AnswerGrader):
    """Grade 1 if the stated answer's similarity to the correct one reaches ``threshold``. Similarity is 1 − (edited
    characters / length of the longer text). With ``order = "free"``, words are sorted first.
    """

    name: Literal["fuzzy"] = "fuzzy"  # name of the grader
    threshold: Fraction = 0.85  # minimum similarity, from 0 to 1
    order: Literal["fixed", "free"] = "fixed"  # order of the words; "free": any order
    # differences to ignore
    ignore: Annotated[tuple[IgnoredFeature, ...], Strict(False)] = ("accents", "articles", "case", "punctuation")

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for comparable text in every correct answer.

        Raises:
            ValueError: ``ignore`` removes all of an answer.
        """
        for gold in read_gold_answers(answer):
            if not self._normalize(gold):
                raise ValueError(f"holds {gold[:80]!r}, of which nothing is left to compare (ignore)")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its stated answer."""
        statement = strip_markup(extract_answer(text))
        normalized = self._normalize(statement) if len(statement) <= MAX_LENGTH else ""
        golds = [self._normalize(gold) for gold in read_gold_answers(answer)]
        return make_binary_grade(
            bool(normalized) and any(similarity(gold, normalized) >= self.threshold for gold in golds)
        )

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

    name: Literal["quantity"] = "quantity"  # name of the grader
    tolerance: NonNegative = 0.0  # maximum distance from the correct quantity, in its unit
    relative: NonNegative = 1e-6  # maximum distance as a fraction of the correct quantity
    # for a number without a unit: "required" grades it 0, "assumed" takes the correct answer's unit
    unit: Literal["required", "assumed"] = "required"

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for exactly one quantity in every correct answer.

        Raises:
            ValueError: an answer is not one quantity.
        """
        for gold in read_gold_answers(answer):
            if len(parse_quantities(reference_answer(gold))) != 1:
                raise ValueError(f"holds {gold[:80]!r}, which is not one quantity")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its quantity."""
        marked_answer, statement = find_answer(text), strip_markup(extract_answer(text))
        statement, is_marked = (
            statement.rpartition("=")[2][-MAX_LENGTH:],
            marked_answer is not None or statement != strip_markup(strip_reasoning(text)),
        )
        quantities = [] if REJECTED.match(statement) else parse_quantities(statement)
        if not quantities or (len(quantities) > 1 and (marked_answer is not None or ALTERNATIVE.search(statement))):
            return make_binary_grade(False)
        quantity = quantities[0] if is_marked else quantities[-1]
        golds = [
            gold_quantity
            for gold in read_gold_answers(answer)
            for gold_quantity in parse_quantities(reference_answer(gold))
        ]
        return make_binary_grade(any(self._is_close(gold, quantity) for gold in golds))

    def _is_close(self, gold: Quantity, quantity: Quantity) -> bool:
        has_no_unit = quantity.unit.factor == 1 and not quantity.unit.dimensions
        value = quantity.value if has_no_unit and self.unit == "assumed" else quantity.in_unit(gold.unit)
        max_error = max(Exactly(self.tolerance), Exactly(self.relative) * abs(gold.value))
        return value is not None and abs(value - gold.value) <= max_error
