"""Gradings of answers that need not be the right one to the letter: spelled alike, or as much in another unit."""

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

LONGEST = 2000  # characters that are compared; an answer that is longer is none
DENIED = re.compile(r"\s*(?:(?:it|this|that)\s+is\s+)?(?:not|never|neither)\b", re.IGNORECASE)
EITHER = re.compile(r"\b(?:or|between|either)\b", re.IGNORECASE)  # of two quantities, any may be meant
Ignored = Literal["accents", "articles", "case", "punctuation"]


class Fuzzy(Grading):
    """1 where the stated answer is as like the right one as ``threshold``: by the characters that would have to be
    edited (1 less their share of the longer text). With ``order = "free"`` words are put in order first."""

    name: Literal["fuzzy"] = "fuzzy"  # which grading it is
    threshold: Fraction = 0.85  # how like the right one, from 0 to 1
    order: Literal["kept", "free"] = "kept"  # of the words; "free": they may come in any
    # what does not count
    ignore: Annotated[tuple[Ignored, ...], Strict(False)] = ("accents", "articles", "case", "punctuation")

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Something is left of every right answer that is compared."""
        for right in right_answers(answer):
            if not self._plain(right):
                raise ValueError(f"holds {right[:80]!r}, of which nothing is left to compare (ignore)")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """Held against what the text states."""
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
    """1 where the text's quantity is as much as the right one, in whatever unit: ``3 km`` is ``3000 m``, ``5 %`` is
    ``0.05``. Which quantity is the text's is found as for ``numeric``."""

    name: Literal["quantity"] = "quantity"  # which grading it is
    tolerance: NotNegative = 0.0  # how far from the right one, in its unit
    relative: NotNegative = 1e-6  # the same, times the right one
    unit: Literal["needed", "assumed"] = "needed"  # a number alone is none; or it is in the right one's unit

    def check(self, answer: object, cells: Cells) -> None:  # noqa: ARG002
        """Every right answer is one quantity."""
        for right in right_answers(answer):
            if len(quantities_in(answer_in(right))) != 1:
                raise ValueError(f"holds {right[:80]!r}, which is not one quantity")

    def grade(self, answer: object, cells: Cells, text: str) -> Grade:  # noqa: ARG002
        """The text's quantity, beside the right ones."""
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
