"""Scores of an arm by task, and comparison with the team on the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marft.common.types import Episode
from marft.evaluation.intervals import paired_difference, wilson_interval
from marft.evaluation.ratios import Ratio, average_ratio, compare_ratios

Measure = Literal["accuracy", "reward"]
MEASURES: tuple[Measure, ...] = ("accuracy", "reward")
Interval = tuple[float, float] | None
Groups = Mapping[str, Sequence[Episode]]  # attempts by task


@dataclass(frozen=True, slots=True)
class VariantScores:
    """An arm's scores: sums over a task's attempts, with the number of attempts.

    Tokens and seconds include all attempts played for an answer.
    """

    measures: Mapping[Measure, Mapping[str, Ratio]]  # by task; measures without known values are empty
    tokens: Mapping[str, Ratio]
    seconds: Mapping[str, Ratio]
    failed: int
    attempts: int  # attempts played per answer


@dataclass(frozen=True, slots=True)
class MetricValue:
    """Mean over tasks, and its difference to the team's mean on common tasks.

    Intervals are 95 % intervals over tasks. They are None if the tasks do not determine them (see
    :func:`summarize_scores`).
    """

    value: float
    interval: Interval = None
    difference: float | None = None
    difference_interval: Interval = None


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Table row of an arm."""

    part: str
    name: str
    values: Mapping[Measure, MetricValue]
    tasks: int
    failed: int
    attempts: int
    tokens: float | None  # per answer
    seconds: float | None


def group_by_task(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Return the scored attempts by task, in order."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.is_scored:
            groups.setdefault(episode.task.id, []).append(episode)
    return groups


def count_tokens(episode: Episode) -> float:
    """Return the number of read and sampled tokens, as in ``cost_tokens``: ``Σ_a |prompt_a| + |tokens_a|``."""
    return float(sum(len(action.prompt) + len(action.tokens) for action in episode.actions))


def action_seconds(episode: Episode) -> float:
    """Return the seconds of all actions, as in ``cost_seconds``."""
    return sum(action.ended - action.started for action in episode.actions)


def compute_scores(episodes: Sequence[Episode]) -> VariantScores:
    """Return scores with every attempt as a separate answer."""
    groups = group_by_task(episodes)
    failed = sum(not episode.is_scored for episode in episodes)
    return _group_scores(groups, groups, failed, attempts=1)


def compute_chosen_scores(
    chosen: Mapping[str, Episode], all_attempts: Groups, failed: int, attempts: int
) -> VariantScores:
    """Return scores with a chosen answer per task; the costs include every played attempt."""
    scores = _group_scores({task: [episode] for task, episode in chosen.items()}, all_attempts, failed, attempts)
    tokens, seconds = ({t: Ratio(r.numerator) for t, r in ratios.items()} for ratios in (scores.tokens, scores.seconds))
    return replace(scores, tokens=tokens, seconds=seconds)


def _group_scores(answers: Groups, all_attempts: Groups, failed: int, attempts: int) -> VariantScores:
    successes = {task: [float(e.success) for e in items if e.success is not None] for task, items in answers.items()}
    return VariantScores(
        {
            "accuracy": {task: Ratio(sum(items), len(items)) for task, items in successes.items() if items},
            "reward": {task: Ratio(sum(e.total_reward for e in items), len(items)) for task, items in answers.items()},
        },
        {task: Ratio(sum(map(count_tokens, items)), len(items)) for task, items in all_attempts.items()},
        {task: Ratio(sum(map(action_seconds, items)), len(items)) for task, items in all_attempts.items()},
        failed,
        attempts,
    )


def build_row(part: str, name: str, scores: VariantScores, team: VariantScores | None = None) -> ResultRow:
    """Return an arm's table row.

    Args:
        part: name of the part.
        name: name of the arm.
        scores: scores of the arm.
        team: scores to compare with; None for the team itself.
    """
    values = {}
    for measure in MEASURES:
        reference = team.measures[measure] if team else None
        value = summarize_scores(scores.measures[measure], reference, shares=measure == "accuracy")
        if value is not None:
            values[measure] = value
    return ResultRow(
        part,
        name,
        values,
        len(scores.measures["reward"]),
        scores.failed,
        scores.attempts,
        Ratio.total(scores.tokens.values()).value,
        Ratio.total(scores.seconds.values()).value,
    )


def summarize_scores(
    scores: Mapping[str, Ratio], team: Mapping[str, Ratio] | None = None, *, shares: bool = False
) -> MetricValue | None:
    """Return the mean of a measure with its interval, and its difference to the team; None without known values.

    Args:
        scores: values of the arm, by task.
        team: values of the team, by task.
        shares: True for success rates. If no two tasks differ, the interval is Wilson's, and the interval of a
            difference is Agresti and Min's.
    """
    mean_interval = average_ratio(scores)
    if mean_interval is None:
        return None
    mean, mean_bounds = mean_interval
    outcomes = _outcomes(scores) if shares else None
    mean_bounds = mean_bounds or (wilson_interval(sum(outcomes.values()), len(outcomes)) if outcomes else None)
    if team is None or (comparison := compare_ratios(team, scores)) is None:
        return MetricValue(mean, mean_bounds)
    interval = comparison.interval
    if shares and interval is None:
        common = team.keys() & scores.keys()
        before, after = (_outcomes({task: ratios[task] for task in common}) for ratios in (team, scores))
        interval = paired_difference([*before.values()], [*after.values()])[1] if before and after else None
    return MetricValue(mean, mean_bounds, comparison.gain, interval)


def _outcomes(scores: Mapping[str, Ratio]) -> dict[str, bool] | None:
    """Return each task's success if its attempts agree on every task; else None."""
    unanimous = all(ratio.numerator in (0.0, ratio.denominator) for ratio in scores.values())
    return {task: ratio.numerator > 0 for task, ratio in scores.items()} if unanimous else None
