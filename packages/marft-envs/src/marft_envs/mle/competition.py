"""A competition: public files, hidden answers, and grading of submissions."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marft.envs.content_digest import digest_content
from marft_envs.mle.medals import Leaderboard
from marft_envs.mle.metrics import METRICS, compute_accuracy

GradeFunction = Callable[[Mapping[str, str], Mapping[str, str]], float]
DIGITS = 5  # decimal places of a score, as in MLE-bench
MAX_SHOWN_IDS = 5  # maximum ids in an error message


class InvalidSubmissionError(ValueError):
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
        grade_fn: function that replaces the metric: correct answers and predictions by id → score; None: use the
            metric.
    """

    description: str
    public: Mapping[str, bytes]
    answers: Mapping[str, str]
    columns: tuple[str, str]
    metric: str
    leaderboard: Leaderboard
    grade_fn: GradeFunction | None = None

    @property
    def digest(self) -> str:
        """Digest of the public files, the answers and the leaderboard."""
        files = (part for name, content in sorted(self.public.items()) for part in (name, content))
        other_parts = [self.answers, self.columns, [*self.leaderboard.scores], self.leaderboard.lower_is_better]
        return digest_content(json.dumps(other_parts, sort_keys=True), *files)

    def score(self, submission: str) -> float:
        """Score a submission, given as CSV text.

        Raises:
            InvalidSubmissionError: the submission cannot be graded. The message gives the reason.
        """
        predicted = parse_predictions(submission, self.columns, list(self.answers))
        if self.grade_fn is not None:
            return round(float(self.grade_fn(self.answers, predicted)), DIGITS)
        metric = METRICS[self.metric]
        expected, predicted_labels = list(self.answers.values()), [predicted[name] for name in self.answers]
        if metric.score_fn is None:
            return round(compute_accuracy(expected, predicted_labels), DIGITS)
        predicted_numbers = [
            _parse_number(name, predicted[name], metric.minimum, metric.maximum) for name in self.answers
        ]
        return round(metric.score_fn(np.array(expected, np.float64), np.array(predicted_numbers, np.float64)), DIGITS)


def parse_predictions(submission: str, columns: tuple[str, str], ids: Sequence[str]) -> dict[str, str]:
    """Parse the predictions of a submission, by id.

    Columns may have any order, and extra columns are ignored, as in MLE-bench's graders.

    Raises:
        InvalidSubmissionError: columns, ids or cells are missing, duplicated or unknown.
    """
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(submission.removeprefix("\ufeff")), strict=True) if row]
    except (csv.Error, ValueError) as error:
        raise InvalidSubmissionError("submission.csv holds no table with a header") from error
    named = [name.strip() for name in header]
    if any(named.count(name) != 1 for name in columns):
        raise InvalidSubmissionError(
            f"submission.csv has the columns {', '.join(header)[:200]}, not {', '.join(columns)}"
        )
    if wrong := next((number for number, row in enumerate(rows, 1) if len(row) != len(header)), 0):
        raise InvalidSubmissionError(
            f"row {wrong} of submission.csv has {len(rows[wrong - 1])} cells, not {len(header)}"
        )
    name, value = (named.index(column) for column in columns)
    predictions_by_id = {row[name].strip(): row[value].strip() for row in rows}
    if len(predictions_by_id) < len(rows):
        raise InvalidSubmissionError("an id comes twice in submission.csv")
    for words, names in (
        ("lacks", set(ids) - set(predictions_by_id)),
        ("has unknown", set(predictions_by_id) - set(ids)),
    ):
        if names:
            sample_ids = ", ".join(sorted(names)[:MAX_SHOWN_IDS])
            raise InvalidSubmissionError(
                f"submission.csv {words} ids: {len(names)} of them, such as {sample_ids[:200]}"
            )
    return predictions_by_id


def _parse_number(name: str, cell: str, minimum: float, maximum: float) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and minimum <= number <= maximum):
        raise InvalidSubmissionError(
            f"the prediction for id {name[:80]} is {cell[:40]!r}, and has to be a number that is meant"
        )
    return number
