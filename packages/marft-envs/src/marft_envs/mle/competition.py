"""A competition: public files, hidden answers, and grading of submissions."""

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
DIGITS = 5  # decimal places of a score, as in MLE-bench
SHOWN = 5  # maximum ids in an error message


class InvalidError(ValueError):
    """Error for an ungradable submission; the message is for the team."""


@dataclass(frozen=True, slots=True)
class Competition:
    """A competition with its public files, hidden answers and leaderboard.

    Args:
        description: text of the task for the team.
        public: content of the files given to teams, by relative path.
        answers: correct answers by id.
        columns: names of the id column and the prediction column of a submission.
        metric: name in :data:`METRICS`.
        leaderboard: scores of other teams.
        grade: function that replaces the metric: correct answers and predictions by id → score; None: use the metric.
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
        """Digest of the public files, the answers and the leaderboard."""
        files = (part for name, content in sorted(self.public.items()) for part in (name, content))
        rest = [self.answers, self.columns, [*self.leaderboard.scores], self.leaderboard.lower_is_better]
        return content_of(json.dumps(rest, sort_keys=True), *files)

    def score(self, submission: str) -> float:
        """Score a submission, given as CSV text.

        Raises:
            InvalidError: the submission cannot be graded. The message gives the reason.
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
    """Parse the predictions of a submission, by id.

    Columns may have any order, and extra columns are ignored, as in MLE-bench's graders.

    Raises:
        InvalidError: columns, ids or cells are missing, duplicated or unknown.
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
