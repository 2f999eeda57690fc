"""Graders for answers close to the correct one: similar spelling, or an equal quantity in another unit."""

from __future__ import annotations

import re
from fractions import Fraction as Exactly
from typing import Annotated, Literal

from pydantic import Strict

from marft.agents.answers import answer_in, find_answer, stated_answer, undecorated
from marft.common.thoughts import outside_thoughts
from marft.config.settings import Fraction, NotNegative
from marft.envs.grading import Cells, Grading, all_or_nothing, right_answers
from marft.envs.single_turn import Grade
from marft.rewards.comparing import plain_words, similarity
from marft.rewards.quantities import Quantity, quantities_in

LONGEST = 2000  # maximum characters to compare; a longer answer is wrong
DENIED = re.compile(r"\s*(?:(?:it|this|that)\s+is\s+)?(?:not|never|neither)\b", re.IGNORECASE)
EITHER = re.compile(r"\b(?:or|between|either)\b", re.IGNORECASE)  # with two quantities, either may be meant
Ignored = Literal["accents", "articles", "case", "punctuation"]


class Fuzzy(Grading):
    """Grade 1 if the stated answer's similarity to the correct one reaches ``threshold``. Similarity is 1 − (edited
    characters / length of the longer text). With ``order = "free"``, words are sorted first.
    """

    name: Literal["fuzzy"] = "fuzzy"  # name of the grader
    threshold: Fraction = 0.85  # minimum similarity, from 0 to 1
    order: Literal["kept", "free"] = "kept"  # order of the words; "free": any order
    # differences to ignore
    ignore: Annotated[tuple[Ignored, ...], Strict(False)] = ("accents", "articles", "case", "punctuation")

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for comparable text in every correct answer.

        Raises:
            ValueError: ``ignore`` removes all of an answer.
        """
        for right in right_answers(answer):
            if not self._plain(right):
                raise ValueError(f"holds {right[:80]!r}, of which nothing is left to compare (ignore)")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its stated answer."""
        stated = undecorated(stated_answer(text))
        given = self._plain(stated) if len(stated) <= LONGEST else ""
        rights = [self._plain(right) for right in right_answers(answer)]
        return all_or_nothing(bool(given) and any(similarity(right, given) >= self.threshold for right in rights))

    def _plain(self, text: str) -> str:
        words = plain_words(
            text, case="case" in self.ignore, punctuation="punctuation" in self.ignore,
            articles="articles" in self.ignore, accents="accents" in self.ignore,
        )  # fmt: skip
        return " ".join(sorted(words) if self.order == "free" else words)


class Quantities(Grading):
    """Grade 1 if the text's quantity equals the correct one, in any unit: ``3 km`` = ``3000 m``, ``5 %`` =
    ``0.05``. The text's quantity is found as for ``numeric``.
    """

    name: Literal["quantity"] = "quantity"  # name of the grader
    tolerance: NotNegative = 0.0  # maximum distance from the correct quantity, in its unit
    relative: NotNegative = 1e-6  # maximum distance as a fraction of the correct quantity
    # for a number without a unit: "needed" grades it 0, "assumed" takes the correct answer's unit
    unit: Literal["needed", "assumed"] = "needed"

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Check for exactly one quantity in every correct answer.

        Raises:
            ValueError: an answer is not one quantity.
        """
        for right in right_answers(answer):
            if len(quantities_in(answer_in(right))) != 1:
                raise ValueError(f"holds {right[:80]!r}, which is not one quantity")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Return a text's grade by its quantity."""
        found, stated = find_answer(text), undecorated(stated_answer(text))
        stated, marked = (
            stated.rpartition("=")[2][-LONGEST:],
            found is not None or stated != undecorated(outside_thoughts(text)),
        )
        quantities = [] if DENIED.match(stated) else quantities_in(stated)
        if not quantities or (len(quantities) > 1 and (found is not None or EITHER.search(stated))):
            return all_or_nothing(False)
        given = quantities[0] if marked else quantities[-1]
        rights = [one for right in right_answers(answer) for one in quantities_in(answer_in(right))]
        return all_or_nothing(any(self._near(right, given) for right in rights))

    def _near(self, right: Quantity, given: Quantity) -> bool:
        alone = given.unit.factor == 1 and not given.unit.dimensions
        value = given.value if alone and self.unit == "assumed" else given.in_unit(right.unit)
        most = max(Exactly(self.tolerance), Exactly(self.relative) * abs(right.value))
        return value is not None and abs(value - right.value) <= most
