"""A competition: what teams are given, what is kept back, and how a submission is graded."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marft.envs.contents import content_of
from marft_envs.mle.medals import Leaderboard
from marft_envs.mle.metrics import METRICS, accuracy

Grade = Callable[[Mapping[str, str], Mapping[str, str]], float]
DIGITS = 5  # that a score is rounded to, as MLE-bench does
SHOWN = 5  # ids that a message names


class InvalidError(ValueError):
    """A submission cannot be graded; the message is for the team."""


@dataclass(frozen=True, slots=True)
class Competition:
    """
    Args:
        public: files that teams are given, by relative path.
        answers: right answers by id.
        columns: of a submission: the id's and the prediction's.
        metric: by name, one of :data:`METRICS`.
        grade: in its place, from right answers and predictions by id; None: the metric.
    """

    description: str
    public: Mapping[str, bytes]
    answers: Mapping[str, str]
    columns: tuple[str, str]
    metric: str
    leaderboard: Leaderboard
    grade: Grade | None = None

    @property
    def digest(self) -> str:
        """Of what the team is given, what is right, and who is on the leaderboard."""
        files = (part for name, content in sorted(self.public.items()) for part in (name, content))
        rest = [self.answers, self.columns, [*self.leaderboard.scores], self.leaderboard.lower_is_better]
        return content_of(json.dumps(rest, sort_keys=True), *files)

    def score(self, submission: str) -> float:
        """The score of a submission, as text of a table.

        Raises:
            InvalidError: it cannot be graded; the message says what is wrong with it.
        """
        given = predictions(submission, self.columns, list(self.answers))
        if self.grade is not None:
            return round(float(self.grade(self.answers, given)), DIGITS)
        metric = METRICS[self.metric]
        right, said = list(self.answers.values()), [given[name] for name in self.answers]
        if metric.of_numbers is None:
            return round(accuracy(right, said), DIGITS)
        numbers = [_number(name, given[name], metric.least, metric.most) for name in self.answers]
        return round(metric.of_numbers(np.array(right, np.float64), np.array(numbers, np.float64)), DIGITS)


def predictions(submission: str, columns: tuple[str, str], ids: Sequence[str]) -> dict[str, str]:
    """Predictions by id. Columns may stand in any order, and others beside them, as MLE-bench's graders take them.

    Raises:
        InvalidError: columns, ids or cells are missing, or more than they should be.
    """
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(submission.removeprefix("\ufeff")), strict=True) if row]
    except (csv.Error, ValueError) as error:
        raise InvalidError("submission.csv holds no table with a header") from error
    named = [name.strip() for name in header]
    if any(named.count(name) != 1 for name in columns):
        raise InvalidError(f"submission.csv has the columns {', '.join(header)[:200]}, not {', '.join(columns)}")
    if wrong := next((number for number, row in enumerate(rows, 1) if len(row) != len(header)), 0):
        raise InvalidError(f"row {wrong} of submission.csv has {len(rows[wrong - 1])} cells, not {len(header)}")
    name, value = (named.index(column) for column in columns)
    found = {row[name].strip(): row[value].strip() for row in rows}
    if len(found) < len(rows):
        raise InvalidError("an id comes twice in submission.csv")
    for words, names in (("lacks", set(ids) - set(found)), ("has unknown", set(found) - set(ids))):
        if names:
            some = ", ".join(sorted(names)[:SHOWN])
            raise InvalidError(f"submission.csv {words} ids: {len(names)} of them, such as {some[:200]}")
    return found


def _number(name: str, cell: str, least: float, most: float) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and least <= number <= most):
        raise InvalidError(f"the prediction for id {name[:80]} is {cell[:40]!r}, and has to be a number that is meant")
    return number
