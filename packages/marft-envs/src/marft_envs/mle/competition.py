"""A competition: public files, hidden answers, and grading of submissions.

A metric gives one number from correct answers and predictions, row by row. Medals go by rank on the leaderboard, as in
MLE-bench (Chan et al. 2024, section 2.2).
"""

from __future__ import annotations

import csv
import io
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.errors import UserError
from marft.envs.tasks import digest_content

Column = npt.NDArray[np.float64]
MIN_PROBABILITY = 1e-15  # probabilities are clipped to [LEAST, 1 − LEAST]


class Metric(NamedTuple):
    """A metric and the range of valid predictions.

    Args:
        lower_is_better: True if lower scores are better.
        score_fn: function of correct values [N] and predicted values [N]; None to compare labels as texts.
        minimum: smallest valid prediction.
        maximum: largest valid prediction.
    """

    lower_is_better: bool
    score_fn: Callable[[Column, Column], float] | None = None
    minimum: float = -np.inf
    maximum: float = np.inf


def compute_rmse(expected: Column, predicted: Column) -> float:
    """Return the root mean squared error, ``√(Σ (y − ŷ)² / N)``."""
    return float(np.sqrt(np.mean((expected - predicted) ** 2)))


def compute_mae(expected: Column, predicted: Column) -> float:
    """Return the mean absolute error, ``Σ |y − ŷ| / N``."""
    return float(np.mean(np.abs(expected - predicted)))


def compute_rmsle(expected: Column, predicted: Column) -> float:
    """Return the root mean squared logarithmic error, ``√(Σ (ln(1 + y) − ln(1 + ŷ))² / N)``."""
    return compute_rmse(np.log1p(expected), np.log1p(predicted))


def compute_auc(expected: Column, predicted: Column) -> float:
    """Return the area under the ROC curve (Mann and Whitney 1947).

    It is the probability that a row of class 1 gets a larger prediction than a row of class 0; a tie counts one
    half. With only one class the result is one half.
    """
    positive, negative = predicted[expected == 1], predicted[expected != 1]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = np.sort(negative)
    below, up_to = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + up_to).sum() / 2 / len(positive) / len(negative))


def compute_log_loss(expected: Column, predicted: Column) -> float:
    """Return the binary cross-entropy, ``−Σ (y ln p + (1 − y) ln(1 − p)) / N``."""
    p = np.clip(predicted, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return float(-np.mean(expected * np.log(p) + (1 - expected) * np.log1p(-p)))


def compute_accuracy(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the fraction of correct labels."""
    return sum(map(labels_match, expected, predicted)) / len(expected)


def labels_match(expected: str, predicted: str) -> bool:
    """Return True if a label equals the correct one.

    Two numbers, or two truth values, are compared by value, because reading a table may change their form. Other
    labels are compared exactly.

    >>> labels_match("1", "1.0"), labels_match("True", "true"), labels_match("cat", "Cat")
    (True, True, False)
    """
    if expected == predicted:
        return True
    if {expected.lower(), predicted.lower()} <= {"true", "false"}:
        return expected.lower() == predicted.lower()
    try:
        return float(expected) == float(predicted)
    except ValueError:
        return False


METRICS: dict[str, Metric] = {
    "accuracy": Metric(lower_is_better=False),
    "auc": Metric(lower_is_better=False, score_fn=compute_auc, minimum=0.0, maximum=1.0),
    "log_loss": Metric(lower_is_better=True, score_fn=compute_log_loss, minimum=0.0, maximum=1.0),
    "mae": Metric(lower_is_better=True, score_fn=compute_mae),
    "rmse": Metric(lower_is_better=True, score_fn=compute_rmse),
    "rmsle": Metric(lower_is_better=True, score_fn=compute_rmsle, minimum=0.0),
}
METRIC_ALIASES = {  # names in MLE-bench's configurations, and common aliases
    "auc-roc": "auc",
    "roc-auc": "auc",
    "area-under-roc": "auc",
    "classification-accuracy": "accuracy",
    "multi-class-classification-accuracy": "accuracy",
    "binary-log-loss": "log_loss",
    "log-loss": "log_loss",
    "mean-absolute-error": "mae",
    "root-mean-squared-error": "rmse",
    "root-mean-squared-log-error": "rmsle",
}


Medal = Literal["gold", "silver", "bronze", ""]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Scores of all teams, best first.

    Args:
        scores: scores of the teams.
        lower_is_better: True if the metric prefers lower scores.
    """

    scores: Sequence[float]
    lower_is_better: bool

    def medal_for(self, score: float) -> Medal:
        """Return the best medal for a score; a tie with the last medal place earns the medal, and "" means none.

        >>> board = Leaderboard([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], False)
        >>> [board.medal_for(score) for score in (0.95, 0.85, 0.8, 0.6, 0.5)]
        ['gold', 'silver', 'silver', 'bronze', '']
        """
        names: Sequence[Medal] = ("gold", "silver", "bronze")
        for name, place in zip(names, medal_places(len(self.scores)), strict=True):
            if self._reaches_bound(score, self.scores[place - 1]):
                return name
        return ""

    def is_above_median(self, score: float) -> bool:
        """Return True if the score beats the median team."""
        middle = median(self.scores)
        return score < middle if self.lower_is_better else score > middle

    def share_beaten(self, score: float) -> float:
        """Return the fraction of teams that the score beats; a tie counts one half."""
        ordered = sorted(-team_score if self.lower_is_better else team_score for team_score in self.scores)
        own_score = -score if self.lower_is_better else score
        return (bisect_left(ordered, own_score) + bisect_right(ordered, own_score)) / 2 / len(ordered)

    def _reaches_bound(self, score: float, bound: float) -> bool:
        return score <= bound if self.lower_is_better else score >= bound


def medal_places(teams: int) -> tuple[int, int, int]:
    """Return the last places for gold, silver and bronze: Kaggle's rules, rounded down as in MLE-bench.

    >>> medal_places(50), medal_places(120), medal_places(600), medal_places(2000)
    ((5, 10, 20), (10, 24, 48), (11, 50, 100), (14, 100, 200))
    """
    assert teams > 0
    if teams < 100:
        places = (teams // 10, teams // 5, teams * 2 // 5)
    elif teams < 250:
        places = (10, teams // 5, teams * 2 // 5)
    elif teams < 1000:
        places = (10 + teams // 500, 50, 100)
    else:
        places = (10 + teams // 500, teams // 20, teams // 10)
    gold, silver, bronze = (max(1, place) for place in places)
    return gold, silver, bronze


GradeFunction = Callable[[Mapping[str, str], Mapping[str, str]], float]
DIGITS = 5  # decimal places of a score, as in MLE-bench
MAX_SHOWN_IDS = 5  # maximum ids in an error message


class InvalidSubmissionError(UserError):
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
